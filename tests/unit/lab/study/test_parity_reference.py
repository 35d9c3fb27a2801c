"""Which answers a run is compared with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from enginebay.lab.store.run_reader import Run
from enginebay.lab.store.study_plan import StudyStep
from enginebay.lab.study.parity_reference import ParityReferences, compare_with_reference
from enginebay.lab.study.study_point import StudyPoint
from tests.unit.lab.store.run_files import write_run

WORKLOAD = {"kind": "synthetic", "input_tokens": 8, "output_tokens": 4}
FIRST = StudyPoint("first", "a", "m", WORKLOAD, {"kind": "offline"})
SECOND = replace(FIRST, label="second", engine="b", profile={"kind": "poisson", "rate": 2})
LONGER = replace(FIRST, label="longer", workload={**WORKLOAD, "input_tokens": 16})


def run(folder: Path, name: str, tokens: list[int] | None) -> Run:
    answers = [] if tokens is None else [{"prompt_ids": [1], "token_ids": tokens, "logprobs": [-1.0], "text": ""}]
    parity: dict[str, Any] | None = None if tokens is None else {"answers": answers, "tokens": 4}
    return write_run(folder, f"20261115-143015-{name}-1", parity=parity, study={"id": "s", "label": name})


def test_the_first_run_with_the_same_prompts_is_the_reference(tmp_path: Path) -> None:
    references = ParityReferences([FIRST, SECOND, LONGER], {})
    assert references.find(StudyStep(1, 1)) is None
    references.add(StudyStep(0, 1), run(tmp_path, "first", [7]))
    references.add(StudyStep(1, 1), run(tmp_path, "second", [8]))
    found = references.find(StudyStep(1, 2))
    assert found is not None and (found.label, found.point) == ("first", 0)
    assert references.find(StudyStep(0, 2)) is None  # itself
    assert references.find(StudyStep(2, 1)) is None  # other prompts


def test_a_run_without_answers_is_no_reference(tmp_path: Path) -> None:
    references = ParityReferences([FIRST, SECOND], {})
    references.add(StudyStep(0, 1), run(tmp_path, "first", None))
    assert references.find(StudyStep(1, 1)) is None


def test_a_study_that_is_resumed_knows_its_finished_runs_in_their_order(tmp_path: Path) -> None:
    done = {StudyStep(1, 1): run(tmp_path, "second", [8]), StudyStep(0, 1): run(tmp_path, "first", [7])}
    found = ParityReferences([FIRST, SECOND], done).find(StudyStep(1, 2))
    assert found is not None and found.label == "first"


def test_answers_are_compared_one_by_one(tmp_path: Path) -> None:
    references = ParityReferences([FIRST, SECOND], {StudyStep(0, 1): run(tmp_path, "first", [7])})
    reference = references.find(StudyStep(1, 1))
    assert reference is not None
    same = compare_with_reference(reference, reference.answers)
    assert same is not None and same.identical_answers == 1.0
    other = compare_with_reference(reference, [replace(reference.answers[0], token_ids=(9,))])
    assert other is not None and other.greedy_agreement == 0.0
    assert compare_with_reference(reference, ()) is None and compare_with_reference(None, reference.answers) is None
    assert compare_with_reference(reference, [*reference.answers] * 2) is None
