"""The stored plan of a study: its runs in order. The stored runs alone tell what is finished, so the two cannot disagree."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from enginebay.lab.store.canonical_json import to_plain
from enginebay.lab.store.run_errors import BusyStudy, CorruptRun, CorruptStudy, UnknownRun
from enginebay.lab.store.run_folders import STUDIES_FOLDER
from enginebay.lab.store.run_reader import Run, list_runs
from enginebay.util.atomic_file import write_atomically

STUDY_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class StudyStep:
    """One planned run: a point in a cycle."""

    point: int  # index into the study's points
    cycle: int  # from 1
    label: str = ""


@dataclass(frozen=True, slots=True)
class Study:
    """The plan of one `bay experiment`, stored before its first run."""

    id: str
    created: str
    steps: tuple[StudyStep, ...]  # in order of execution
    points: tuple[dict[str, Any], ...] = ()  # engine, settings and workload of each
    config: dict[str, Any] = field(default_factory=dict)  # as the user wrote it
    schema_version: int = STUDY_SCHEMA_VERSION


def study_path(folder: Path, study_id: str) -> Path:
    return folder / STUDIES_FOLDER / f"{study_id}.json"


def save_study(folder: Path, study: Study) -> Path:
    """Store a new plan. Raise `FileExistsError` if another study has the id."""
    path = study_path(folder, study.id)
    content = msgspec.json.format(msgspec.json.encode(to_plain(study)), indent=2) + b"\n"
    write_atomically(path, content, sync=True, overwrite=False)
    return path


def load_study(folder: Path, study_id: str) -> Study:
    """Load a plan. Raise `UnknownRun` or `CorruptStudy`."""
    path = study_path(folder, study_id)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UnknownRun(f"unknown study {study_id!r} in {folder}", _suggest_studies(folder)) from None
    except OSError as error:
        raise CorruptStudy(f"{path} cannot be read: {error.strerror}", "start the study again") from None
    try:
        study = msgspec.json.decode(content, type=Study)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptStudy(f"{path} cannot be read: {error}", "start the study again; its finished runs stay") from None
    if study.schema_version != STUDY_SCHEMA_VERSION:
        raise CorruptStudy(f"{path} has unknown schema version {study.schema_version}", "upgrade enginebay")
    return study


@contextmanager
def lock_study(folder: Path, study_id: str) -> Iterator[None]:
    """Keep other processes from running the study. The lock ends with this process, even if killed. Raise `BusyStudy`."""
    descriptor = os.open(study_path(folder, study_id), os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait until it finishes, or choose another with --study"
            raise BusyStudy(f"another process is running {study_id}", hint) from None
        except OSError:  # a network file system that cannot lock
            pass
        yield
    finally:
        os.close(descriptor)


def list_study_ids(folder: Path) -> list[str]:
    """Return the ids of all studies, oldest first."""
    return sorted(path.stem for path in (folder / STUDIES_FOLDER).glob("*.json") if not path.name.startswith("."))


def find_finished_runs(folder: Path, study_id: str) -> tuple[dict[StudyStep, Run], list[CorruptRun]]:
    """Return the study's finished runs by step, and the errors of all corrupt runs, whose study is unknown.

    A corrupt run does not count as finished, so it is run again.
    """
    runs, errors = list_runs(folder)
    return {to_step(run): run for run in runs if run.study_id == study_id}, errors


def list_remaining(study: Study, finished: dict[StudyStep, Run]) -> list[StudyStep]:
    """Return the remaining steps in order. Steps are matched by point and cycle, not by label."""
    done = {(step.point, step.cycle) for step in finished}
    return [step for step in study.steps if (step.point, step.cycle) not in done]


def to_step(run: Run) -> StudyStep:
    return StudyStep(int(run.manifest["study"].get("point") or 0), run.cycle, run.label)


def _suggest_studies(folder: Path) -> str:
    ids = list_study_ids(folder)
    return f"latest studies: {', '.join(ids[-3:])}" if ids else "no studies here"
