"""Create, resume and run studies. Finished runs are kept, so a killed study resumes where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from enginebay.errors import EnginebayError
from enginebay.lab.store import study_plan
from enginebay.lab.store.run_errors import CorruptStudy, UnknownRun
from enginebay.lab.store.run_folders import remove_stale_partials, utc_now
from enginebay.lab.store.run_reader import Run, load_run
from enginebay.lab.study.parity_reference import ParityReferences
from enginebay.lab.study.run_point import StudyContext, run_point
from enginebay.lab.study.study_point import StudyPoint, point_from_dict, schedule_steps

OnStepStarted = Callable[[study_plan.StudyStep, int, int], None]  # step, its number, number of steps
OnStepEnded = Callable[[study_plan.StudyStep, Run | EnginebayError], None]


@dataclass(frozen=True, slots=True)
class StudyOutcome:
    """The runs of a study, and the points that could not be run."""

    study_id: str
    runs: list[Run]
    failed: dict[int, EnginebayError]  # by index of the point


def create_study(
    folder: Path, points: Sequence[StudyPoint], cycles: int, config: dict[str, object]
) -> study_plan.Study:
    """Plan a study and store the plan before its first run."""
    created = utc_now()
    study_id = created.strftime("study-%Y%m%d-%H%M%S")
    study = study_plan.Study(
        id=study_id,
        created=created.isoformat(),
        steps=tuple(schedule_steps([point.label for point in points], cycles)),
        points=tuple(point.to_dict() for point in points),
        config=config,
    )
    number = 1
    while True:  # another study may start in the same second
        try:
            study_plan.save_study(folder, study)
            return study
        except FileExistsError:
            number += 1
            study = replace(study, id=f"{study_id}-{number}")


def find_study_to_resume(folder: Path, name: str | None) -> tuple[study_plan.Study, list[EnginebayError]]:
    """Return the named study, or the last unfinished one, and the errors of corrupt plans and runs.

    Raise `UnknownRun`, or `CorruptStudy` if the named study is corrupt.
    """
    if name is not None:
        return study_plan.load_study(folder, name), [*study_plan.find_finished_runs(folder, name)[1]]
    skipped: list[EnginebayError] = []
    for study_id in reversed(study_plan.list_study_ids(folder)):
        try:
            study = study_plan.load_study(folder, study_id)
        except CorruptStudy as error:
            skipped.append(error)
            continue
        done, errors = study_plan.find_finished_runs(folder, study_id)
        if study_plan.list_remaining(study, done):
            return study, [*skipped, *errors]
    reasons = "; ".join(error.message for error in skipped)
    raise UnknownRun("no study to resume", reasons or "all studies here are finished")


def run_study(
    context: StudyContext, study: study_plan.Study, on_started: OnStepStarted, on_ended: OnStepEnded
) -> StudyOutcome:
    """Make the remaining runs. A point that cannot be run is skipped in later cycles."""
    context = replace(context, study_id=study.id, cycles=max((step.cycle for step in study.steps), default=None))
    remove_stale_partials(context.runs_dir)
    done, _ = study_plan.find_finished_runs(context.runs_dir, study.id)
    remaining = study_plan.list_remaining(study, done)
    points = [point_from_dict(data) for data in study.points]
    references = ParityReferences(points, done)
    failed: dict[int, EnginebayError] = {}
    new_runs: list[Run] = []
    for number, step in enumerate(remaining, len(study.steps) - len(remaining) + 1):
        if step.point in failed:
            continue
        on_started(step, number, len(study.steps))
        try:
            run = load_run(run_point(context, points[step.point], step, reference=references.find(step)))
        except EnginebayError as error:
            failed[step.point] = error
            on_ended(step, error)
            continue
        new_runs.append(run)
        references.add(step, run)
        on_ended(step, run)
    return StudyOutcome(study.id, [*done.values(), *new_runs], failed)
