"""The verdict on each engine of a search, and the ranking."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.lab.measures.slo import slo_from_dict
from enginebay.lab.search.candidates import (
    Candidate,
    ObjectiveResult,
    add_verdict,
    count_kept,
    is_doubtful,
    is_surely_kept,
    is_surely_missed,
    lower_bound,
    pool_results,
    rank_candidates,
    summarize_energy,
    upper_bound,
)
from enginebay.lab.search.rate_bisection import SearchResult
from enginebay.lab.workload.request_records import Record


def candidate(engine: str, rate: float | None, joules: float | None = None, status: Any = "valid") -> Candidate:
    energy = {"absent": "no meter"} if joules is None else {"j_per_output_token": joules, "of": "gpu"}
    return Candidate(engine, engine, rate=rate, energy=energy, status=status)


def test_the_highest_rate_is_first_and_those_without_one_are_last() -> None:
    ranking = rank_candidates([candidate("a", None), candidate("b", 1.0), candidate("c", 3.0)], 0.1)
    assert [one.engine for one in ranking.order] == ["c", "b", "a"]
    assert ranking.best is ranking.order[0] and not ranking.level


def test_among_rates_that_cannot_be_told_apart_energy_decides() -> None:
    ranking = rank_candidates([candidate("a", 3.0, 0.5), candidate("b", 2.9, 0.2), candidate("c", 1.0, 0.1)], 0.1)
    assert [one.engine for one in ranking.order] == ["b", "a", "c"]
    assert (ranking.decided_by, ranking.level) == ("energy", ["a", "b"])


def test_energy_that_one_of_them_does_not_have_decides_nothing() -> None:
    ranking = rank_candidates([candidate("a", 2.9, 0.2), candidate("b", 3.0)], 0.1)
    assert [one.engine for one in ranking.order] == ["b", "a"]
    assert (ranking.decided_by, ranking.level) == ("rate", ["b", "a"])


def test_no_engine_and_no_rate_have_no_best() -> None:
    assert rank_candidates([], 0.1).best is None
    assert rank_candidates([candidate("a", None)], 0.1).best is None


def test_a_rival_that_is_invalid_makes_the_whole_invalid() -> None:
    assert rank_candidates([candidate("a", 3.0), candidate("b", 1.0, status="invalid")], 0.1).status == "invalid"
    assert (
        rank_candidates([candidate("a", 3.0), candidate("b", 1.0, status="informative")], 0.1).status == "informative"
    )
    assert rank_candidates([candidate("a", 3.0)], 0.1).status == "valid"


def test_shares_have_the_bounds_of_clopper_and_pearson() -> None:
    assert lower_bound(72, 72) == pytest.approx(0.05 ** (1 / 72))
    assert upper_bound(0, 8) == pytest.approx(1 - 0.05 ** (1 / 8))
    assert lower_bound(0, 8) == 0.0 and upper_bound(8, 8) == 1.0


def test_enough_requests_make_it_sure() -> None:
    assert is_surely_kept([ObjectiveResult("ttft_p95", 95, 72, 72)])
    assert not is_surely_kept([ObjectiveResult("ttft_p95", 95, 70, 72)])
    assert not is_surely_kept([ObjectiveResult("ttft_p95", 95, 72, 72), ObjectiveResult("tpot_p95", 95, 69, 72)])
    assert is_surely_missed([ObjectiveResult("ttft_p95", 95, 0, 8)])
    assert not is_surely_missed([ObjectiveResult("ttft_p95", 95, 7, 8)])


def test_requests_are_counted_for_each_objective_and_failures_keep_none() -> None:
    records = [Record(i, 0.0, 0.0, first_s=0.1 * i, last_s=1.0, end_s=1.0, output_tokens=2) for i in range(1, 5)]
    records.append(Record(5, 0.0, 0.0, end_s=0.1, error="closed"))
    kept = count_kept(records, slo_from_dict({"ttft_p95": 0.25, "e2e_p50": 2.0}))
    assert [(one.objective, one.kept, one.count) for one in kept] == [("ttft_p95", 2, 5), ("e2e_p50", 4, 5)]
    (both, _) = pool_results([kept, kept])
    assert (both.kept, both.count) == (4, 10)


REASONS = [
    {"code": "stream_bunched", "severity": "informative", "message": "m"},
    {"code": "energy_window_short", "severity": "invalid", "message": "too short"},
]


def test_a_run_with_energy_that_cannot_be_believed_still_has_its_rate() -> None:
    found = add_verdict(Candidate("a", "a", rate=3.0, sure=True), SearchResult(3.0, 3.2, True, True), REASONS, False)
    assert found.status == "informative"
    assert [reason["code"] for reason in found.reasons] == ["stream_bunched"]
    assert summarize_energy({"j_per_output_token": 0.2, "energy_of": "gpu"}, REASONS) == {
        "absent": "energy_window_short: too short"
    }


def test_what_the_search_leaves_open_is_a_reason() -> None:
    kept = [ObjectiveResult("ttft_p95", 95, 69, 72)]
    found = add_verdict(Candidate("a", "a", rate=3.0, kept=kept), SearchResult(3.0, 6.0), [], True)
    assert [one["code"] for one in found.reasons] == ["miss_doubtful", "not_confirmed", "coarse", "narrowly_kept"]
    assert "95.8% of 72 requests met ttft_p95, 95% must" in found.reasons[-1]["message"]
    none = add_verdict(Candidate("a", "a"), SearchResult(None, 0.5), [], True)
    assert none.status == "invalid"  # it might have been the best
    sure = add_verdict(Candidate("a", "a", rate=3.0, sure=True), SearchResult(3.0, 3.2, True, True), [], False)
    assert sure.status == "valid" and not sure.reasons


def test_an_invalid_run_makes_an_invalid_candidate() -> None:
    reasons = [{"code": "machine_busy", "severity": "invalid", "message": "m"}]
    assert (
        add_verdict(Candidate("a", "a", rate=3.0, sure=True), SearchResult(3.0, 3.2, True, True), reasons, False).status
        == "invalid"
    )
    assert is_doubtful(reasons) and not is_doubtful([{"code": "errors", "severity": "invalid"}])
    assert not is_doubtful([{"code": "machine_busy", "severity": "informative"}])


def test_energy_is_there_or_its_reason_is() -> None:
    assert summarize_energy({"j_per_output_token": 0.2, "energy_of": "gpu"}, []) == {
        "j_per_output_token": 0.2,
        "of": "gpu",
    }
    absent = {"absent": {"nvml": "no GPU", "rapl": "not readable", "j_per_output_token": "no energy was read"}}
    assert summarize_energy(absent, []) == {"absent": "nvml: no GPU; rapl: not readable"}
    assert summarize_energy({"absent": {"j_per_output_token": "no such tokens"}}, []) == {"absent": "no such tokens"}
