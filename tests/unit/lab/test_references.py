"""Whose answers a run's are held against."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from enginebay.lab.points import Point
from enginebay.lab.references import References, parity_with
from enginebay.lab.runs.reader import Run
from enginebay.lab.runs.study import Step
from tests.unit.lab.runs.made import write_run

WORKLOAD = {"kind": "synthetic", "input_tokens": 8, "output_tokens": 4}
FIRST = Point("first", "a", "m", WORKLOAD, {"kind": "offline"})
SECOND = replace(FIRST, label="second", engine="b", profile={"kind": "poisson", "rate": 2})
LONGER = replace(FIRST, label="longer", workload={**WORKLOAD, "input_tokens": 16})


def run(folder: Path, name: str, tokens: list[int] | None) -> Run:
    answers = [] if tokens is None else [{"prompt_ids": [1], "token_ids": tokens, "logprobs": [-1.0], "text": ""}]
    parity: dict[str, Any] | None = None if tokens is None else {"answers": answers, "tokens": 4}
    return write_run(folder, f"20261115-143015-{name}-1", parity=parity, study={"id": "s", "label": name})


def test_the_first_that_was_asked_the_same_is_the_reference(tmp_path: Path) -> None:
    references = References([FIRST, SECOND, LONGER], {})
    assert references.of(Step(1, 1)) is None
    references.take(Step(0, 1), run(tmp_path, "first", [7]))
    references.take(Step(1, 1), run(tmp_path, "second", [8]))
    found = references.of(Step(1, 2))
    assert found is not None and (found.label, found.point) == ("first", 0)
    assert references.of(Step(0, 2)) is None  # itself
    assert references.of(Step(2, 1)) is None  # other prompts


def test_a_run_without_answers_is_no_reference(tmp_path: Path) -> None:
    references = References([FIRST, SECOND], {})
    references.take(Step(0, 1), run(tmp_path, "first", None))
    assert references.of(Step(1, 1)) is None


def test_a_study_that_is_resumed_knows_its_finished_runs_in_their_order(tmp_path: Path) -> None:
    done = {Step(1, 1): run(tmp_path, "second", [8]), Step(0, 1): run(tmp_path, "first", [7])}
    found = References([FIRST, SECOND], done).of(Step(1, 2))
    assert found is not None and found.label == "first"


def test_answers_are_compared_one_by_one(tmp_path: Path) -> None:
    references = References([FIRST, SECOND], {Step(0, 1): run(tmp_path, "first", [7])})
    reference = references.of(Step(1, 1))
    assert reference is not None
    same = parity_with(reference, reference.answers)
    assert same is not None and same.identical_answers == 1.0
    other = parity_with(reference, [replace(reference.answers[0], token_ids=(9,))])
    assert other is not None and other.greedy_agreement == 0.0
    assert parity_with(reference, ()) is None and parity_with(None, reference.answers) is None
    assert parity_with(reference, [*reference.answers] * 2) is None
