"""Whose answers a run's are held against: those of the first run of the study that was asked the same prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from enginebay.lab.measures.parity import Parity, ParityAnswer, compare_answers
from enginebay.lab.statistics.run_comparison import load_parity_answers
from enginebay.lab.store.canonical_json import hash_value
from enginebay.lab.store.run_reader import Run
from enginebay.lab.store.study_plan import StudyStep
from enginebay.lab.study.study_point import StudyPoint


@dataclass(frozen=True, slots=True)
class ParityReference:
    """The answers of one point of a study."""

    point: int  # its place in the study
    label: str
    answers: Sequence[ParityAnswer]


class ParityReferences:
    """Grows with the runs of a study; on a study that is resumed it begins with what is finished."""

    def __init__(self, points: Sequence[StudyPoint], done: Mapping[StudyStep, Run]) -> None:
        self._prompt_digests = [_digest_prompts(point) for point in points]
        self._first_by_prompts: dict[str, ParityReference] = {}
        for step, run in sorted(done.items(), key=lambda one: (one[0].cycle, one[0].point)):
            self.add(step, run)

    def add(self, step: StudyStep, run: Run) -> None:
        """A run that is finished; it counts if it is the first that answered these prompts."""
        answers = load_parity_answers(run)
        if answers:
            self._first_by_prompts.setdefault(
                self._prompt_digests[step.point], ParityReference(step.point, run.label, answers)
            )

    def find(self, step: StudyStep) -> ParityReference | None:
        """What this step's answers are held against. None: nothing yet, or they are themselves the first."""
        found = self._first_by_prompts.get(self._prompt_digests[step.point])
        return None if found is None or found.point == step.point else found


def compare_with_reference(reference: ParityReference | None, answers: Sequence[ParityAnswer]) -> Parity | None:
    """Of a run's answers against the reference's. None: one of them has none, or not as many. Pure."""
    if reference is None or not answers or len(answers) != len(reference.answers):
        return None
    return compare_answers(reference.answers, answers)


def _digest_prompts(point: StudyPoint) -> str:
    """Tells prompts apart: those of points that differ in engine, settings or arrivals alone are the same."""
    return hash_value([point.model, point.workload, point.seed, point.parity])
