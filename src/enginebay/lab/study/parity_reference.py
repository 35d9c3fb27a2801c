"""The parity reference of a run: the first run of the study that answered the same prompts."""

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
    """The parity answers of one point of a study."""

    point: int  # its index in the study
    label: str
    answers: Sequence[ParityAnswer]


class ParityReferences:
    """The references of a study; grows with its runs. A resumed study starts with its finished runs."""

    def __init__(self, points: Sequence[StudyPoint], done: Mapping[StudyStep, Run]) -> None:
        self._prompt_digests = [_digest_prompts(point) for point in points]
        self._first_by_prompts: dict[str, ParityReference] = {}
        for step, run in sorted(done.items(), key=lambda item: (item[0].cycle, item[0].point)):
            self.add(step, run)

    def add(self, step: StudyStep, run: Run) -> None:
        """Record a finished run as the reference if it is the first that answered its prompts."""
        answers = load_parity_answers(run)
        if answers:
            self._first_by_prompts.setdefault(
                self._prompt_digests[step.point], ParityReference(step.point, run.label, answers)
            )

    def find(self, step: StudyStep) -> ParityReference | None:
        """Return the reference of a step. None: there is none yet, or it is this point."""
        reference = self._first_by_prompts.get(self._prompt_digests[step.point])
        return None if reference is None or reference.point == step.point else reference


def compare_with_reference(reference: ParityReference | None, answers: Sequence[ParityAnswer]) -> Parity | None:
    """Compare a run's answers with the reference's. None: either has no answers, or their counts differ. Pure."""
    if reference is None or not answers or len(answers) != len(reference.answers):
        return None
    return compare_answers(reference.answers, answers)


def _digest_prompts(point: StudyPoint) -> str:
    """Hash what determines the prompts. Points that differ only in engine, settings or arrivals have the same ones."""
    return hash_value([point.model, point.workload, point.seed, point.parity])
