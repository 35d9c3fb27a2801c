"""Find the runs that the user names on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from enginebay.lab.store.run_errors import CorruptRun, UnknownRun
from enginebay.lab.store.run_reader import Run, list_runs, load_run
from enginebay.lab.store.study_plan import study_path

LATEST = "latest"


def select_runs(folder: Path, names: Sequence[str]) -> tuple[list[Run], list[CorruptRun]]:
    """Return runs by id, unique prefix of an id, study id, path, or `latest` (the last study); each once and verified.

    Also return the corrupt runs left out of a study, and those that may belong to it: an unreadable run does not tell its
    study. Raise `CorruptRun` for a corrupt run that was named itself, or if a study has no other runs.
    """
    runs, unreadable = list_runs(folder, verify=False)
    chosen: dict[Path, Run] = {}
    left_out: dict[Path, CorruptRun] = {}
    for name in names:
        study = _find_study_runs(name, runs)
        if study is None:
            run = _find_run(folder, name, runs, unreadable)
            chosen[run.path] = run
            continue
        valid, corrupt = _verify_runs(study)
        if not valid:
            raise corrupt[0]
        chosen |= {run.path: run for run in valid}
        left_out |= {error.folder: error for error in (*corrupt, *unreadable)}
    return list(chosen.values()), list(left_out.values())


def _find_study_runs(name: str, runs: list[Run]) -> list[Run] | None:
    """Return the runs of the named study, or of the last. None: the name is not a study."""
    if name != LATEST:
        return [run for run in runs if run.study_id == name] or None
    if not runs:
        return None
    last = runs[-1]
    return [last] if last.study_id is None else [run for run in runs if run.study_id == last.study_id]


def _verify_runs(runs: Sequence[Run]) -> tuple[list[Run], list[CorruptRun]]:
    valid: list[Run] = []
    corrupt: list[CorruptRun] = []
    for run in runs:
        try:
            run.verify()
        except CorruptRun as error:
            corrupt.append(error)
        else:
            valid.append(run)
    return valid, corrupt


def _find_run(folder: Path, name: str, runs: list[Run], unreadable: list[CorruptRun]) -> Run:
    """Return the run with this path, id or unique prefix of an id. Raise `CorruptRun` or `UnknownRun`."""
    if "/" in name:
        path = Path(name).expanduser().resolve()
        if not path.is_dir():
            raise UnknownRun(f"folder not found: {path}", "pass a run's folder or its id")
        return load_run(path)
    ids = sorted([*(run.id for run in runs), *(error.folder.name for error in unreadable)])
    matches = [name] if name in ids else [run_id for run_id in ids if name and run_id.startswith(name)]
    if len(matches) == 1:
        return load_run(folder / matches[0])
    if matches:
        shown = ", ".join(matches[:4]) + (", ..." if len(matches) > 4 else "")
        raise UnknownRun(f"{len(matches)} runs start with {name}", f"choose one: {shown}")
    if study_path(folder, name).exists():
        raise UnknownRun(f"the study {name} has no runs yet", f"resume it: bay experiment --resume --study {name}")
    if not ids:
        raise UnknownRun(f"no runs in {folder}", "measure one: bay experiment CONFIG.yaml")
    raise UnknownRun(f"unknown run or study {name!r} in {folder}", "`bay results list` lists them")
