"""The candidates of a search must do the same work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enginebay.lab.search.candidate_parity import flag_parity_breaks
from enginebay.lab.search.candidates import Candidate
from tests.unit.lab.store.run_files import write_run

SAME = {"prompt_ids": [1, 2, 3], "token_ids": [7, 8, 9, 10], "logprobs": [-0.1, -0.2, -0.3, -0.4], "text": "abcd"}


def answered(**changes: Any) -> list[dict[str, Any]]:
    return [{**SAME, **changes}, {**SAME, **changes}]


@pytest.fixture()
def candidate(tmp_path: Path) -> Any:
    """Return a function that makes a candidate whose first run has these answers, and whose second run has none."""

    def make(name: str, answers: list[dict[str, Any]] | None = None, **sections: Any) -> Candidate:
        parity = None if answers is None else {"answers": answers, "tokens": 4}
        first = write_run(tmp_path, f"20261115-143015-{name}-1", name, parity=parity, **sections)
        second = write_run(tmp_path, f"20261115-143016-{name}-2", name)
        return Candidate(name, name, rate=1.0, runs=[first.id, second.id])

    return make


def test_engines_with_the_same_answers_get_no_reason(candidate: Any, tmp_path: Path) -> None:
    found = [candidate("a", answered()), candidate("b", answered(logprobs=[-0.11, -0.2, -0.3, -0.4]))]
    assert flag_parity_breaks(found, tmp_path) == found


@pytest.mark.parametrize(
    ("changes", "severity", "said"),
    [
        ({"prompt_ids": [1, 2, 4]}, "invalid", "got different prompt tokens"),
        ({"logprobs": [-0.4, -0.5, -0.6, -0.7]}, "informative", "0.3 nats apart"),
        ({"logprobs": [-2.1, -2.2, -2.3, -2.4]}, "invalid", "2 nats apart"),
        ({"token_ids": [5, 5, 5, 5], "logprobs": None}, "invalid", "agree in 0% of their tokens"),
        ({"token_ids": [7, 8], "logprobs": [-0.1, -0.2]}, "informative", "0.50 times as long"),
    ],
)
def test_an_engine_with_different_answers_gets_the_reason(
    candidate: Any, tmp_path: Path, changes: dict[str, Any], severity: str, said: str
) -> None:
    first, other = flag_parity_breaks([candidate("a", answered()), candidate("b", answered(**changes))], tmp_path)
    assert first.reasons == () and first.status == "valid"
    (reason,) = other.reasons
    assert (reason["code"], reason["severity"], other.status) == ("parity_broken", severity, severity)
    assert reason["message"].startswith("against a: ") and said in reason["message"]


def test_all_are_compared_with_the_first_that_ran(candidate: Any, tmp_path: Path) -> None:
    never = Candidate("never", "never", why_none="could not be run")
    found = [never, candidate("a", answered()), candidate("b", answered(prompt_ids=[9])), candidate("c", answered())]
    flagged = flag_parity_breaks(found, tmp_path)
    assert [candidate_result.label for candidate_result in flagged] == ["never", "a", "b", "c"]
    assert [len(candidate_result.reasons) for candidate_result in flagged] == [0, 0, 1, 0]
    assert flagged[0] is never


def test_an_earlier_reason_stays_and_the_worst_decides(candidate: Any, tmp_path: Path) -> None:
    known = candidate("b", answered(logprobs=[-0.4, -0.5, -0.6, -0.7])).add_reason("coarse", "invalid", "few runs")
    flagged = flag_parity_breaks([candidate("a", answered()), known], tmp_path)[1]
    assert [reason["code"] for reason in flagged.reasons] == ["coarse", "parity_broken"] and flagged.status == "invalid"


@pytest.mark.parametrize("theirs", [None, [], [SAME]])
def test_without_answers_to_the_same_prompts_nothing_is_flagged(candidate: Any, tmp_path: Path, theirs: Any) -> None:
    """Parity is off, or the number of prompts differs."""
    found = [candidate("a", answered()), candidate("b", theirs)]
    assert flag_parity_breaks(found, tmp_path) == found


def test_unknown_answers_are_not_flagged(candidate: Any, tmp_path: Path) -> None:
    unknown = answered(prompt_ids=None, token_ids=None, logprobs=None)
    found = [candidate("a", answered()), candidate("b", unknown)]
    assert flag_parity_breaks(found, tmp_path) == found


def test_a_single_engine_or_none(candidate: Any, tmp_path: Path) -> None:
    alone = [candidate("a", answered())]
    assert flag_parity_breaks(alone, tmp_path) == alone
    assert flag_parity_breaks([], tmp_path) == []
    none = [Candidate("a", "a"), Candidate("b", "b")]
    assert flag_parity_breaks(none, tmp_path) == none
