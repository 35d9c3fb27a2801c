"""The runs that a person means by a word."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from enginebay.lab.store.run_errors import CorruptRun, UnknownRun
from enginebay.lab.store.run_reader import Run, list_runs, load_run
from enginebay.lab.store.study_plan import study_path

LATEST = "latest"


def select_runs(folder: Path, names: Sequence[str]) -> tuple[list[Run], list[CorruptRun]]:
    """Runs by id, unique beginning of an id, study id, path, or `latest`, the last study; each once, and checked against its hashes.

    Beside them the corrupt runs that are left out of a study, and those that may be of it: what study such a run is of,
    it cannot tell. A corrupt run that was named itself is raised, as is one of a study that has no other runs.
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
        whole, corrupt = _verify_runs(study)
        if not whole:
            raise corrupt[0]
        chosen |= {run.path: run for run in whole}
        left_out |= {problem.folder: problem for problem in (*corrupt, *unreadable)}
    return list(chosen.values()), list(left_out.values())


def _find_study_runs(name: str, runs: list[Run]) -> list[Run] | None:
    """The runs of the study of that name, or of the last; None where the word is not for a study."""
    if name != LATEST:
        return [run for run in runs if run.study_id == name] or None
    if not runs:
        return None
    last = runs[-1]
    return [last] if last.study_id is None else [run for run in runs if run.study_id == last.study_id]


def _verify_runs(runs: Sequence[Run]) -> tuple[list[Run], list[CorruptRun]]:
    whole: list[Run] = []
    corrupt: list[CorruptRun] = []
    for run in runs:
        try:
            run.verify()
        except CorruptRun as problem:
            corrupt.append(problem)
        else:
            whole.append(run)
    return whole, corrupt


def _find_run(folder: Path, name: str, runs: list[Run], unreadable: list[CorruptRun]) -> Run:
    """The one run that is named by its path, its id, or the beginning of its id. Raises `CorruptRun` and `UnknownRun`."""
    if "/" in name:
        path = Path(name).expanduser().resolve()
        if not path.is_dir():
            raise UnknownRun(f"there is no folder {path}", "give a run's folder, or its id")
        return load_run(path)
    known = sorted([*(run.id for run in runs), *(problem.folder.name for problem in unreadable)])
    near = [name] if name in known else [one for one in known if name and one.startswith(name)]
    if len(near) == 1:
        return load_run(folder / near[0])
    if near:
        shown = ", ".join(near[:4]) + (", ..." if len(near) > 4 else "")
        raise UnknownRun(f"{len(near)} runs begin with {name}", f"say which: {shown}")
    if study_path(folder, name).exists():
        raise UnknownRun(f"the study {name} has no runs yet", f"go on with it: bay experiment --resume --study {name}")
    if not known:
        raise UnknownRun(f"there are no runs in {folder}", "measure one: bay experiment CONFIG.yaml")
    raise UnknownRun(f"there is no run or study {name!r} in {folder}", "`bay results list` lists them")
