"""A study: all its runs, one after the other. What is finished stays finished, so a killed study goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from enginebay.errors import EnginebayError
from enginebay.lab.conduct import Bench, conduct
from enginebay.lab.points import Point, point_of, steps
from enginebay.lab.references import References
from enginebay.lab.runs.errors import CorruptStudy, UnknownRun
from enginebay.lab.runs.folders import clean_partials, now
from enginebay.lab.runs.reader import Run, load_run
from enginebay.lab.runs.study import Step, Study, finished_runs, load_study, remaining, save_study, study_ids

Began = Callable[[Step, int, int], None]  # a step, its number, and how many there are
Ended = Callable[[Step, Run | EnginebayError], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a study gave: its runs, and the points that could not be run."""

    study_id: str
    runs: list[Run]
    failed: dict[int, EnginebayError]  # by point


def new_study(folder: Path, points: Sequence[Point], cycles: int, config: dict[str, object]) -> Study:
    """Plan a study and write the plan down, before its first run."""
    created = now()
    wanted = created.strftime("study-%Y%m%d-%H%M%S")
    study = Study(
        id=wanted,
        created=created.isoformat(),
        steps=tuple(steps([point.label for point in points], cycles)),
        points=tuple(point.as_data() for point in points),
        config=config,
    )
    number = 1
    while True:  # until the name is free: another study may begin in the same second
        try:
            save_study(folder, study)
            return study
        except FileExistsError:
            number += 1
            study = replace(study, id=f"{wanted}-{number}")


def study_to_resume(folder: Path, name: str | None) -> tuple[Study, list[EnginebayError]]:
    """The study of this name; without one, the last that is not finished. And the plans and runs that are corrupt.

    Raises `UnknownRun`, and `CorruptStudy` where the study was named.
    """
    if name is not None:
        return load_study(folder, name), [*finished_runs(folder, name)[1]]
    skipped: list[EnginebayError] = []
    for study_id in reversed(study_ids(folder)):
        try:
            study = load_study(folder, study_id)
        except CorruptStudy as problem:
            skipped.append(problem)
            continue
        done, problems = finished_runs(folder, study_id)
        if remaining(study, done):
            return study, [*skipped, *problems]
    others = "; ".join(problem.message for problem in skipped)
    raise UnknownRun("there is no study to resume", others or "all that were begun here are finished")


def carry_out(bench: Bench, study: Study, began: Began, ended: Ended) -> Outcome:
    """Make every run that is left. A point that cannot be run is left out of the cycles that follow."""
    bench = replace(bench, study_id=study.id, cycles=max((step.cycle for step in study.steps), default=None))
    clean_partials(bench.runs)
    done, _ = finished_runs(bench.runs, study.id)
    left = remaining(study, done)
    points = [point_of(data) for data in study.points]
    references = References(points, done)
    failed: dict[int, EnginebayError] = {}
    made: list[Run] = []
    for number, step in enumerate(left, len(study.steps) - len(left) + 1):
        if step.point in failed:
            continue
        began(step, number, len(study.steps))
        try:
            run = load_run(conduct(bench, points[step.point], step, reference=references.of(step)))
        except EnginebayError as error:
            failed[step.point] = error
            ended(step, error)
            continue
        made.append(run)
        references.take(step, run)
        ended(step, run)
    return Outcome(study.id, [*done.values(), *made], failed)
