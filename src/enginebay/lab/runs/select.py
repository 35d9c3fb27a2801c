"""The runs that a person means by a word."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from enginebay.lab.runs.errors import CorruptRun, UnknownRun
from enginebay.lab.runs.reader import Run, list_runs, load_run

LATEST = "latest"


def select_runs(folder: Path, names: Sequence[str]) -> list[Run]:
    """Runs by id, unique beginning of an id, study id, path, or `latest`, the last study; each once, and checked against its hashes."""
    runs, problems = list_runs(folder, verify=False)
    chosen: dict[Path, Run] = {}
    for name in names:
        for run in _named(folder, name, runs, problems):
            run.verify()
            chosen[run.path] = run
    return list(chosen.values())


def _named(folder: Path, name: str, runs: list[Run], problems: list[CorruptRun]) -> list[Run]:
    if "/" in name:
        path = Path(name).expanduser().resolve()
        if not path.is_dir():
            raise UnknownRun(f"there is no folder {path}", "give a run's folder, or its id")
        return [load_run(path)]
    if name == LATEST and runs:
        last = runs[-1]
        return [last] if last.study_id is None else [run for run in runs if run.study_id == last.study_id]
    exact = [run for run in runs if name in (run.id, run.study_id)]
    if exact:
        return exact
    for problem in problems:
        if problem.folder.name == name:
            raise problem
    near = [run for run in runs if name and run.id.startswith(name)]
    if len(near) == 1:
        return near
    if near:
        shown = ", ".join(run.id for run in near[:4]) + (", ..." if len(near) > 4 else "")
        raise UnknownRun(f"{len(near)} runs begin with {name}", f"say which: {shown}")
    if not runs:
        raise UnknownRun(f"there are no runs in {folder}", "measure one: bay experiment CONFIG.yaml")
    raise UnknownRun(f"there is no run or study {name!r} in {folder}", "`bay results list` lists them")
