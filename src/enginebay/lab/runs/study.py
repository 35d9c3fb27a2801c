"""The plan of a study: its runs in order. What is finished is told by the runs themselves, so that the two cannot disagree."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from enginebay.lab.runs.durable import replace
from enginebay.lab.runs.errors import CorruptStudy, UnknownRun
from enginebay.lab.runs.folders import STUDIES
from enginebay.lab.runs.plain import plain
from enginebay.lab.runs.reader import Run, list_runs

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Step:
    """One run that is to be made: a point in a cycle."""

    point: int  # its place in the study's points
    cycle: int  # from 1
    label: str = ""


@dataclass(frozen=True, slots=True)
class Study:
    """What one `bay experiment` is to run, written before its first run."""

    id: str
    created: str
    steps: tuple[Step, ...]  # in the order they are run
    points: tuple[dict[str, Any], ...] = ()  # engine, settings and load of each
    config: dict[str, Any] = field(default_factory=dict)  # as given
    schema_version: int = SCHEMA_VERSION


def study_path(folder: Path, study_id: str) -> Path:
    return folder / STUDIES / f"{study_id}.json"


def save_study(folder: Path, study: Study) -> Path:
    path = study_path(folder, study.id)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, msgspec.json.format(msgspec.json.encode(plain(study)), indent=2) + b"\n")
    return path


def load_study(folder: Path, study_id: str) -> Study:
    path = study_path(folder, study_id)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UnknownRun(f"there is no study {study_id!r} in {folder}", _which(folder)) from None
    try:
        study = msgspec.json.decode(content, type=Study)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptStudy(f"{path} cannot be read: {error}", "begin the study anew; its finished runs stay") from None
    if study.schema_version != SCHEMA_VERSION:
        raise CorruptStudy(f"{path} has schema version {study.schema_version}, which is not known", "upgrade enginebay")
    return study


def study_ids(folder: Path) -> list[str]:
    """Oldest name first."""
    return sorted(path.stem for path in (folder / STUDIES).glob("*.json") if not path.name.startswith("."))


def finished_runs(folder: Path, study_id: str) -> dict[Step, Run]:
    """The study's finished runs by their step. A corrupt one is not among them, so that it is run again."""
    runs, _ = list_runs(folder)
    return {step_of(run): run for run in runs if run.study_id == study_id}


def remaining(study: Study, finished: dict[Step, Run]) -> list[Step]:
    """The steps that are left, in their order. The label is for people and does not tell steps apart."""
    done = {(step.point, step.cycle) for step in finished}
    return [step for step in study.steps if (step.point, step.cycle) not in done]


def step_of(run: Run) -> Step:
    return Step(int(run.manifest["study"].get("point") or 0), run.cycle, run.label)


def _which(folder: Path) -> str:
    known = study_ids(folder)
    return f"the last ones are: {', '.join(known[-3:])}" if known else "no study has been begun here"
