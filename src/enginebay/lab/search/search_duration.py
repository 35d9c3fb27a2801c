"""Estimate how long a search takes, and keep to it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from enginebay.lab.search.concurrency_sweep import CONCURRENCIES, count_level_requests, max_sending_s
from enginebay.lab.search.rate_bisection import SearchRules, Trial
from enginebay.lab.study.study_point import ParityPlan
from enginebay.lab.study.study_size import StudySize, estimate_run_s

if TYPE_CHECKING:
    from enginebay.lab.search.rate_search import SearchGoal
    from enginebay.lab.study.engine_speed import EngineSpeed

MIN_RUN_LATENCIES = 10  # a shorter run is mostly ramp-up and drain, and shows no queue growth
CONFIRM_FACTOR = 2  # times longer; energy is measured in this run, and meters need a long window
ENGINE_BUDGET_S = 420.0  # shorter prompts and answers are tried above it
LONGEST_S = 600.0  # of a search; a slower engine gets a coarser result
LENGTH_SHARES = ((1, 1), (1, 2), (2, 4), (4, 8))  # by what prompts and answers are divided
_BRACKET_TRIALS = 3  # until one rate meets the objective and one misses it; one of them may be repeated
_LEAST_TRIALS = 2  # one rate that meets the objective and one that misses it
_USUAL_LEVELS = 3  # of the concurrency sweep
_USUAL_RATE = 0.6  # of a trial, as a share of the throughput; low rates take longest
_RUN_OVERHEAD_S = 5.0
ANNOUNCED_SLACK = 1.15  # the last run may start just before the time is over


def count_trials(rules: SearchRules) -> int:
    """Return how many runs a search usually needs before it confirms a rate."""
    steps = math.ceil(math.log2(math.log(rules.growth) / math.log1p(rules.resolution)))
    return min(rules.most_runs - 1, _BRACKET_TRIALS + max(0, steps))


def estimate_search_s(speed: EngineSpeed, goal: SearchGoal, output_tokens: int, parity: ParityPlan) -> float:
    """Return how long the search takes on one engine, with the start of its server."""
    single_s, rate = speed.single_s(output_tokens), speed.requests_per_s(output_tokens)
    levels_s = [
        _estimate_level_s(concurrency, single_s if concurrency == 1 else 1 / rate)
        for concurrency in CONCURRENCIES[:_USUAL_LEVELS]
    ]
    trial_s = estimate_trial_s(goal, _USUAL_RATE * rate, single_s)
    start_s = estimate_run_s(speed, StudySize(0, output_tokens), parity)
    return ANNOUNCED_SLACK * (start_s + sum(levels_s) + (count_trials(goal.rules) + CONFIRM_FACTOR) * trial_s)


def _estimate_level_s(concurrency: int, request_s: float) -> float:
    """Return how long a level takes: it stops sending at some time, and then answers what is in flight."""
    all_s = count_level_requests(concurrency) * request_s
    return min(all_s, max_sending_s(concurrency, request_s) + concurrency * request_s) + _RUN_OVERHEAD_S


def estimate_trial_s(goal: SearchGoal, rate: float, single_s: float) -> float:
    """Return how long an open loop at this rate takes."""
    return max(goal.requests / rate, goal.seconds, MIN_RUN_LATENCIES * single_s) + single_s + _RUN_OVERHEAD_S


def plan_search_s(speed: EngineSpeed, goal: SearchGoal, output_tokens: int, parity: ParityPlan) -> float:
    """Return how much time a search gets: what it needs, or less on an engine that would take very long."""
    single_s, rate = speed.single_s(output_tokens), speed.requests_per_s(output_tokens)
    trial_s = estimate_trial_s(goal, _USUAL_RATE * rate, single_s)
    least_s = estimate_run_s(speed, StudySize(0, output_tokens), parity) + (_LEAST_TRIALS + CONFIRM_FACTOR) * trial_s
    return min(estimate_search_s(speed, goal, output_tokens, parity), max(LONGEST_S, ANNOUNCED_SLACK * least_s))


def pick_lengths(
    speeds: Iterable[EngineSpeed], goal: SearchGoal, parity: ParityPlan, lengths: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """Return the longest prompts and answers with which no engine takes too long, else the shortest.

    `lengths`: to try, the longest first. The speeds were measured with its prompts.
    """
    known, measured = list(speeds), lengths[0][0]
    for prompt, answer in lengths:
        scaled = [scale_prompts(speed, prompt / measured) for speed in known]
        if all(estimate_search_s(speed, goal, answer, parity) <= ENGINE_BUDGET_S for speed in scaled):
            return prompt, answer
    return lengths[-1]


def scale_prompts(speed: EngineSpeed, share: float) -> EngineSpeed:
    """Return the speed with prompts of this share of the measured length."""
    return replace(speed, first_s=speed.first_s * share, batch_first_s=speed.batch_first_s * share)


def limit_runs(rules: SearchRules, trials: Sequence[Trial], left_s: float, trial_s: float) -> SearchRules:
    """Return rules that end the search in time: a rate that met the objective is still confirmed."""
    affordable = int(left_s // trial_s) - CONFIRM_FACTOR + 1
    if affordable < 1:
        unconfirmed = any(trial.met for trial in trials) and not any(trial.confirming for trial in trials)
        affordable = int(left_s > 0 or unconfirmed)
    return replace(rules, most_runs=max(2, min(rules.most_runs, len(trials) + affordable)))
