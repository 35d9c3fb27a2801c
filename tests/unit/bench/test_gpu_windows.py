"""How a window of arrivals is judged: a server that falls behind must not pass."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.gpu.rate_windows import (
    RateWindow,
    interpolate_rates,
    judge_window,
    mean_in_flight,
    mean_in_flight_by_thirds,
    plan_climb,
)
from enginebay.lab.workload.request_records import Record


def _sent(count: int, rate: float, judged_from: int = 0) -> tuple[list[float], RateWindow]:
    times = [number / rate for number in range(count)]
    return times, RateWindow(rate, frozenset(range(judged_from, count)), judged_from / rate, count / rate)


def _records(times: Sequence[float], first_s: float, whole_s: float, growth: float = 0.0) -> list[Record]:
    """`growth`: extra seconds of each response over the one before."""
    return [
        Record(index=number, intended_s=at, sent_s=at, first_s=at + first_s, end_s=at + whole_s + growth * number)
        for number, at in enumerate(times)
    ]


def test_a_climb_goes_from_rate_to_rate_without_a_pause() -> None:
    times, windows = plan_climb([10.0, 20.0], step_s=15.0, skip_s=5.0, seed=3)
    assert times == sorted(times)
    assert [(one.rate, one.from_s, one.to_s) for one in windows] == [(10.0, 10.0, 20.0), (20.0, 25.0, 35.0)]
    assert len(times) == 20 * 10 + 15 * 20
    for one in windows:
        assert one.judged == {index for index, at in enumerate(times) if one.from_s <= at < one.to_s}


def test_a_step_lasts_until_it_has_enough_requests_for_a_p95() -> None:
    _, (slow,) = plan_climb([2.0], step_s=10.0, skip_s=2.0, seed=3)
    assert slow.to_s - slow.from_s == pytest.approx(72 / 2.0) and len(slow.judged) == 72


def test_no_two_steps_have_the_same_arrivals() -> None:
    times, windows = plan_climb([10.0] * 3, step_s=15.0, skip_s=5.0, seed=3)
    others, _ = plan_climb([10.0] * 3, step_s=15.0, skip_s=5.0, seed=103)
    gaps = [[round(times[index] - one.from_s, 6) for index in sorted(one.judged)] for one in windows]
    assert gaps[0] != gaps[1] != gaps[2] != gaps[0] and times != others


def test_rates_between_two() -> None:
    assert interpolate_rates(10.0, 40.0, 1) == [10.0, 20.0]
    assert interpolate_rates(12.2, 27.5, 3) == [12.2, 14.9, 18.3, 22.4]


def test_the_p95_decides() -> None:
    times, sent = _sent(100, 10.0)
    records = _records(times, 0.1, 0.5)
    for index in range(94, 100):
        records[index] = Record(index=index, intended_s=9.0, sent_s=9.0, first_s=10.0, end_s=10.5)
    assert not judge_window(sent, records, "ttft", 0.8).met
    assert judge_window(sent, records[:95], "ttft", 0.8).met


def test_latency_counts_from_the_intended_send_time() -> None:
    times, sent = _sent(20, 10.0)
    late = [
        Record(index=number, intended_s=at, sent_s=at + 1, first_s=at + 1.1, end_s=at + 1.2)
        for number, at in enumerate(times)
    ]
    verdict = judge_window(sent, late, "ttft", 0.8)
    assert verdict.p95_s == pytest.approx(1.1) and not verdict.met


def test_the_whole_response_and_the_first_token_are_judged_separately() -> None:
    times, sent = _sent(50, 10.0)
    records = _records(times, 0.1, 0.9)
    assert judge_window(sent, records, "ttft", 0.8).met
    assert not judge_window(sent, records, "e2e", 0.8).met


def test_a_failed_request_has_infinite_latency() -> None:
    times, sent = _sent(20, 10.0)
    records = _records(times, 0.1, 0.2)
    records[3:6] = [Record(index=n, intended_s=0.3, sent_s=0.3, end_s=0.4, error="status") for n in range(3, 6)]
    verdict = judge_window(sent, records, "ttft", 0.8)
    assert verdict.failed == 3 and not verdict.met


def test_requests_before_the_window_are_not_judged() -> None:
    times, sent = _sent(100, 10.0, judged_from=20)
    slow = [
        Record(index=number, intended_s=at, sent_s=at, first_s=at + (5.0 if number < 20 else 0.1), end_s=at + 6.0)
        for number, at in enumerate(times)
    ]
    assert judge_window(sent, slow, "ttft", 0.8).p95_s == pytest.approx(0.1)


def test_a_server_that_falls_behind_misses_the_objective() -> None:
    times, sent = _sent(400, 20.0)
    assert judge_window(sent, _records(times, 0.1, 15.0), "ttft", 0.8).grows  # fills up from idle
    settled = RateWindow(20.0, sent.judged, 8.0, 20.0)
    assert judge_window(settled, _records(times, 0.1, 5.0), "ttft", 0.8).met
    behind = judge_window(settled, _records(times, 0.1, 5.0, growth=0.03), "ttft", 0.8)
    assert behind.grows and not behind.met and behind.p95_s < 0.8


def _served_in_steps(times: Sequence[float]) -> list[Record]:
    """Simulate 128 tokens in and out, in steps of 16 ms plus 0.13 ms per token: a capacity of 30 requests/s."""
    records, running, now, coming = list[Record](), dict[int, tuple[int, float]](), 0.0, 0
    while coming < len(times) or running:
        if not running:
            now = max(now, times[coming])
        begun = coming
        while coming < len(times) and times[coming] <= now:
            coming += 1
        now += 0.016 + 0.00013 * (len(running) + 128 * (coming - begun))
        for index, (left, first_s) in list(running.items()):
            running[index] = (left - 1, first_s)
            if left == 1:
                del running[index]
                at = times[index]
                records.append(Record(index=index, intended_s=at, sent_s=at, first_s=first_s, end_s=now))
        running |= dict.fromkeys(range(begun, coming), (127, now))
    return records


def test_a_climb_finds_the_capacity_of_a_server() -> None:
    """Near its capacity a server settles slowly and its in-flight count varies a lot: neither is falling behind."""
    for seed in (0, 1000, 2000):
        times, windows = plan_climb([14.0, 18.0, 22.0, 26.0, 30.0, 34.0], 60.0, 35.0, seed)
        records = _served_in_steps(times)
        met = [judge_window(one, records, "ttft", 0.8).met for one in windows]
        assert met[:4] == [True] * 4 and not met[-1], (seed, met)


def test_an_empty_window_is_not_met() -> None:
    sent = RateWindow(1.0, frozenset(), 0.5, 1.0)
    assert not judge_window(sent, _records([0.0], 0.1, 0.2), "ttft", 0.8).met


def test_in_flight_is_a_mean_over_time() -> None:
    records = [
        Record(index=0, intended_s=0.0, sent_s=0.0, end_s=1.0),
        Record(index=1, intended_s=1.0, sent_s=1.0, end_s=4.0),
        Record(index=2, intended_s=3.0, sent_s=3.0),
    ]
    assert mean_in_flight(records, 0.0, 2.0) == pytest.approx(1.0)
    assert mean_in_flight(records, 2.0, 4.0) == pytest.approx(1.5)


def test_in_flight_by_thirds_of_the_time() -> None:
    times, _ = _sent(90, 10.0)
    settled = mean_in_flight_by_thirds(_records(times, 0.1, 1.0), 0.0, 9.0)
    assert settled == pytest.approx((8.5, 10.0, 10.0))  # 10/s for a second each, starting from idle
    growing = mean_in_flight_by_thirds(_records(times, 0.1, 1.0, growth=0.05), 0.0, 9.0)
    assert growing[0] < growing[1] < growing[2]
