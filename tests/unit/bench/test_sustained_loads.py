"""When a load generator sustains a workload, and the search for the highest one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.lab.loadgen_results import (
    KnownDelays,
    LoadgenReport,
    ObservedRequest,
    RateWorkload,
    compute_throughput,
    find_faults,
    find_highest_step,
    make_constant_rate,
    summarize_requests,
)

KNOWN = KnownDelays(ttft_s=0.1, itl_s=0.01, tokens=11)
LOAD = make_constant_rate("http://127.0.0.1:1", 11, rate=4.0, warmup_s=1.0, measured_s=2.0)
RIGHT = LoadgenReport(answered=8, tokens=88, rate=4.0, ttft_s=0.1, tpot_s=0.01)


def test_an_even_load_has_a_warm_up_and_a_measured_part() -> None:
    assert (LOAD.warmup, LOAD.measured, LOAD.requests) == (4, 8, 12)
    assert make_constant_rate("", 11, rate=0.1, warmup_s=1.0, measured_s=2.0).measured == 2  # a rate needs two


def test_what_is_right_is_sustained() -> None:
    assert find_faults(RIGHT, LOAD, KNOWN) == []
    assert find_faults(replace(RIGHT, ttft_s=0.1049, tpot_s=0.0104, rate=3.85), LOAD, KNOWN) == []
    assert RIGHT.tokens_per_s == 44.0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (replace(RIGHT, answered=7), "7 responses of 8"),
        (replace(RIGHT, tokens=87), "87 tokens"),
        (replace(RIGHT, ttft_s=0.106), "TTFT +6%"),
        (replace(RIGHT, tpot_s=0.0106), "TPOT +6%"),
        (replace(RIGHT, tpot_s=0.009), "TPOT -10%"),
        (replace(RIGHT, rate=3.6), "rate -10%"),
    ],
)
def test_each_figure_counts(wrong: LoadgenReport, named: str) -> None:
    assert any(named in fault for fault in find_faults(wrong, LOAD, KNOWN))


def test_the_warm_up_does_not_count() -> None:
    warm = [ObservedRequest(start_s=0.1 * index, end_s=9.0, tokens=11, ttft_s=0.4, tpot_s=0.01) for index in range(4)]
    counted = [ObservedRequest(1 + index / 4, 1 + index / 4 + 0.2, 11, 0.1, 0.01) for index in range(8)]
    report = summarize_requests([*counted, *warm], LOAD)
    assert (report.answered, report.tokens) == (8, 88)
    assert (report.rate, report.ttft_s) == (pytest.approx(4), pytest.approx(0.1))
    assert summarize_requests(warm, LOAD).answered == 0
    assert compute_throughput([*counted, *warm], RateWorkload("", 11, 4, 8, concurrency=4)) == pytest.approx(88 / 1.95)


@pytest.mark.parametrize("start", [0, 3, 7, 8, 20])
def test_the_highest_step_is_found_from_anywhere(start: int) -> None:
    assert find_highest_step(lambda step: step <= 7, start) == 7


def test_none_is_found_where_none_is() -> None:
    assert find_highest_step(lambda step: False, 3) is None
