"""Verdicts that are certain before anything runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enginebay.errors import ConfigError
from enginebay.lab.search.preflight import check_tokenizers, predict_search_reasons, predict_study_reasons
from enginebay.lab.search.rate_search import SearchGoal
from enginebay.lab.study.study_point import StudyPoint

CLOSED = {"kind": "closed", "concurrency": 2}
POINT = StudyPoint("a c2", "a", "m", {"kind": "synthetic", "input_tokens": 8}, CLOSED, slo={"ttft_p95": 0.8})


def lines(limits: dict[str, Any], **changes: Any) -> list[str]:
    return predict_study_reasons([replace(POINT, limits=limits, **changes)], 3)


def test_too_few_requests_for_a_percentile_are_reported_with_what_to_change() -> None:
    (line,) = lines({"requests": 10})
    assert "invalid: too_few_for_percentile: 10 answers are too few to judge p95: p95 needs 72" in line
    assert "raise limits.requests (in --profile: requests) to 72," in line
    (by_workload,) = lines({}, workload={**POINT.workload, "requests": 71})
    assert "71 answers" in by_workload and "; raise workload.requests (or num_input_prompts) to 72," in by_workload
    (by_both,) = lines({"requests": 60}, workload={**POINT.workload, "requests": 71})
    assert "60 answers" in by_both and "requests) to 72" not in by_both
    assert (
        "raise limits.requests (in --profile: requests) and workload.requests (or num_input_prompts) to 72" in by_both
    )
    (both,) = lines({"requests": 10}, slo={"ttft_p95": 1, "e2e_p99": 9})
    assert "p95, p99" in both and "to 368," in both


@pytest.mark.parametrize(
    ("limits", "changes"),
    [
        ({"requests": 72}, {}),
        ({}, {}),  # 100 by default
        ({"requests": 10}, {"slo": None}),
        ({"requests": 10}, {"slo": {"ttft_s": 1}}),  # of each request
        ({"duration_s": 1}, {}),  # how many it answers in that time is unknown
        ({}, {"workload": {"kind": "jsonl", "path": __file__}}),  # only the file tells
        ({"duration_s": 1}, {"profile": {"kind": "poisson", "rate": 0.1}}),  # cannot run, which is reported elsewhere
    ],
)
def test_what_is_not_certain_is_not_predicted(limits: dict[str, Any], changes: dict[str, Any]) -> None:
    assert lines(limits, **changes) == []


def test_a_schedule_that_is_too_short_needs_more_than_requests() -> None:
    rated = {"profile": {"kind": "poisson", "rate": 2}}
    assert "; raise the rate or the duration to get 72 requests" in lines({"duration_s": 10}, **rated)[0]
    (both,) = lines({"requests": 20, "duration_s": 10}, **rated)
    assert "requests) to 72, and the rate or the duration" in both


def test_a_line_common_to_all_points_appears_once_and_others_name_their_points() -> None:
    few = replace(POINT, limits={"requests": 10})
    assert len(predict_study_reasons([few, replace(few, label="b c2")], 3)) == 1
    (line,) = predict_study_reasons([few, replace(POINT, label="b c2")], 3)
    assert line.endswith("(of a c2)")


def test_too_few_cycles_are_predicted() -> None:
    (line,) = predict_study_reasons([POINT], 2)
    assert "informative: too_few_cycles: 2 of at least 3 cycles" in line and "--cycles 3" in line
    assert predict_study_reasons([POINT], 3) == []


def test_a_search_predicts_which_runs_will_be_invalid() -> None:
    (line,) = predict_search_reasons(SearchGoal({"ttft_p95": 0.8}, {"kind": "poisson"}, 5, 15.0))
    assert "fewer than 72 requests" in line and "too_few_for_percentile" in line and "--requests 72" in line
    assert predict_search_reasons(SearchGoal({"ttft_p95": 0.8}, {"kind": "poisson"}, 72, 15.0)) == []


def test_generated_prompts_without_a_tokenizer_are_rejected_with_the_flag_that_helps() -> None:
    file = replace(POINT, workload={"kind": "jsonl", "path": __file__})
    check_tokenizers([replace(POINT, tokenizer="bytes"), file])
    with pytest.raises(ConfigError, match="--tokenizer MODEL_OR_PATH"):
        check_tokenizers([file, POINT])
