"""How long a search takes, and that it keeps to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from enginebay.lab.search.rate_bisection import SearchRules, Trial
from enginebay.lab.search.rate_search import SearchGoal
from enginebay.lab.search.search_duration import (
    ENGINE_BUDGET_S,
    LONGEST_S,
    count_trials,
    estimate_search_s,
    estimate_trial_s,
    limit_runs,
    pick_lengths,
    plan_search_s,
    scale_prompts,
)
from enginebay.lab.study.engine_speed import EngineSpeed
from enginebay.lab.study.study_point import ParityPlan

GOAL = SearchGoal({"ttft_p95": 0.8}, {"kind": "poisson"}, 72, 15.0)
LAPTOP = EngineSpeed(start_s=3.0, first_s=0.3, token_s=0.015, batch_first_s=2.0, batch_token_s=0.06)
GPU = EngineSpeed(start_s=20.0, first_s=0.02, token_s=0.004, batch_first_s=0.05, batch_token_s=0.005)
SLOW = EngineSpeed(start_s=3.0, first_s=1.5, token_s=0.05, batch_first_s=5.0, batch_token_s=0.12)
TOASTER = EngineSpeed(start_s=5.0, first_s=4.0, token_s=0.5, batch_first_s=30.0, batch_token_s=3.0)
PARITY = ParityPlan()


def test_a_finer_search_has_more_trials() -> None:
    assert count_trials(SearchRules(resolution=1.0)) <= count_trials(SearchRules()) < count_trials(SearchRules(0.02))
    assert count_trials(SearchRules(most_runs=3)) == 2


@pytest.mark.parametrize(("rate", "seconds"), [(1.0, 72 + 2 + 5), (100.0, 20 + 2 + 5)])
def test_a_trial_lasts_as_long_as_its_requests_or_ten_latencies(rate: float, seconds: float) -> None:
    assert estimate_trial_s(GOAL, rate, 2.0) == seconds


LENGTHS = [(128, 128), (128, 64), (64, 32), (32, 16)]


def test_requests_are_shorter_where_the_search_would_take_too_long() -> None:
    assert pick_lengths([GPU], GOAL, PARITY, LENGTHS) == (128, 128)
    assert estimate_search_s(LAPTOP, GOAL, 128, PARITY) > ENGINE_BUDGET_S
    prompt, answer = pick_lengths([GPU, LAPTOP], GOAL, PARITY, LENGTHS)
    assert answer < 64
    assert estimate_search_s(scale_prompts(LAPTOP, prompt / 128), GOAL, answer, PARITY) <= ENGINE_BUDGET_S
    assert pick_lengths([TOASTER], GOAL, PARITY, LENGTHS) == (32, 16)


def test_a_slow_engine_gets_less_time_than_it_needs_but_enough_for_a_result() -> None:
    assert plan_search_s(GPU, GOAL, 128, PARITY) == estimate_search_s(GPU, GOAL, 128, PARITY)
    slow = scale_prompts(SLOW, 0.25)
    assert plan_search_s(slow, GOAL, 16, PARITY) == LONGEST_S < estimate_search_s(slow, GOAL, 16, PARITY)
    assert LONGEST_S < plan_search_s(TOASTER, GOAL, 16, PARITY) < estimate_search_s(TOASTER, GOAL, 16, PARITY)


MET, MISSED = Trial(1.0, True, False, False), Trial(2.0, False, False, False)


@pytest.mark.parametrize(
    ("trials", "left_s", "more"),
    [
        ([MET, MISSED], 1000.0, 10),  # as the rules say
        ([MET, MISSED], 45.0, 3),  # two trials and a confirming run
        ([MET, MISSED], 25.0, 1),  # only to confirm
        ([MET, MISSED], -5.0, 1),  # even if it is late
        ([MISSED, MISSED], -5.0, 0),  # there is nothing to confirm
        ([MET, replace(MET, confirming=True)], -5.0, 0),
    ],
)
def test_no_more_runs_than_the_time_allows(trials: list[Trial], left_s: float, more: int) -> None:
    assert limit_runs(SearchRules(), trials, left_s, 10.0).most_runs == len(trials) + more
