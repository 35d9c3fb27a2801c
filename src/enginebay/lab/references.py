"""Whose answers a run's are held against: those of the first run of the study that was asked the same prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from enginebay.lab.parity import Answer, Parity, compare_answers
from enginebay.lab.points import Point
from enginebay.lab.runs.comparison import answers_of
from enginebay.lab.runs.plain import digest
from enginebay.lab.runs.reader import Run
from enginebay.lab.runs.study import Step


@dataclass(frozen=True, slots=True)
class Reference:
    """The answers of one point of a study."""

    point: int  # its place in the study
    label: str
    answers: Sequence[Answer]


class References:
    """Grows with the runs of a study; on a study that is resumed it begins with what is finished."""

    def __init__(self, points: Sequence[Point], done: Mapping[Step, Run]) -> None:
        self._prompts = [_prompts(point) for point in points]
        self._first: dict[str, Reference] = {}
        for step, run in sorted(done.items(), key=lambda one: (one[0].cycle, one[0].point)):
            self.take(step, run)

    def take(self, step: Step, run: Run) -> None:
        """A run that is finished; it counts if it is the first that answered these prompts."""
        answers = answers_of(run)
        if answers:
            self._first.setdefault(self._prompts[step.point], Reference(step.point, run.label, answers))

    def of(self, step: Step) -> Reference | None:
        """What this step's answers are held against. None: nothing yet, or they are themselves the first."""
        found = self._first.get(self._prompts[step.point])
        return None if found is None or found.point == step.point else found


def parity_with(reference: Reference | None, answers: Sequence[Answer]) -> Parity | None:
    """Of a run's answers against the reference's. None: one of them has none, or not as many. Pure."""
    if reference is None or not answers or len(answers) != len(reference.answers):
        return None
    return compare_answers(reference.answers, answers)


def _prompts(point: Point) -> str:
    """Tells prompts apart: those of points that differ in engine, settings or arrivals alone are the same."""
    return digest([point.model, point.workload, point.seed, point.parity])
