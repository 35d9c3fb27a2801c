"""A window of arrivals must be judged on what counts, and a server that falls behind must not pass."""

from __future__ import annotations

import pytest

from bench.gpu.windows import (
    Window,
    expected_in_flight,
    head_of,
    in_flight_by_thirds,
    judge,
    length,
    mean_in_flight,
    window,
)
from enginebay.lab.requests import Record, Request

_ONE = Request((1, 2, 3), 3, 100)


def _sent(count: int, rate: float, judged_from: int = 0) -> Window:
    times = [number / rate for number in range(count)]
    return Window([_ONE] * count, times, frozenset(range(judged_from, count)), judged_from / rate, count / rate)


def _records(sent: Window, first_s: float, whole_s: float, growth: float = 0.0) -> list[Record]:
    """`growth`: seconds that each answer takes longer than the one before it."""
    return [
        Record(index=number, intended_s=at, sent_s=at, first_s=at + first_s, end_s=at + whole_s + growth * number)
        for number, at in enumerate(sent.times)
    ]


@pytest.mark.parametrize(("share", "streams", "expected"), [(1.0, 256, 256), (0.9, 256, 183), (0.5, 100, 22)])
def test_what_runs_at_a_share_of_the_capacity(share: float, streams: int, expected: int) -> None:
    assert expected_in_flight(share, streams) == expected


@pytest.mark.parametrize("share", [1.3, 2.0])
def test_no_more_than_a_server_may_hold_is_expected_above_its_capacity(share: float) -> None:
    assert expected_in_flight(share, 100) == 150


def test_a_window_begins_with_what_ran_at_the_nearest_rate() -> None:
    assert head_of(18.0, {}, 20.0, 256) == expected_in_flight(0.9, 256)
    assert head_of(18.0, {9.0: 50.0, 20.0: 300.0}, 20.0, 256) == 270
    assert head_of(18.0, {20.0: 9000.0}, 20.0, 256) == 384


def test_a_window_is_as_long_as_a_p95_needs() -> None:
    assert length(15.0, 4.0, 30.0) == 15.0
    assert length(7.5, 2.0, 2.4) == pytest.approx(2.0 + 72 / 2.4)


def test_a_window_counts_what_arrives_late_and_nothing_of_its_head() -> None:
    made = window(10.0, [_ONE] * 100, 4.0, [_ONE] * 30, seed=3)
    assert len(made.requests) == len(made.times) == 130
    assert list(made.times) == sorted(made.times)
    assert all(made.times[index] >= 4.0 for index in made.judged)
    assert len(made.judged) == sum(at >= 4.0 for at in made.times)
    assert (made.from_s, made.to_s) == (4.0, 10.0)


def test_what_runs_already_has_fewer_tokens_to_go() -> None:
    made = window(1.0, [_ONE], 0.0, [_ONE] * 50, seed=3)
    lengths = {request.output_tokens or 0 for request in made.requests}
    assert max(lengths) == 100 and min(lengths) < 20 and len(lengths) > 20


def test_the_slowest_of_a_few_decides() -> None:
    sent = _sent(100, 10.0)
    records = _records(sent, 0.1, 0.5)
    for index in range(94, 100):
        records[index] = Record(index=index, intended_s=9.0, sent_s=9.0, first_s=10.0, end_s=10.5)
    assert not judge(sent, records, "ttft", 0.8).met
    assert judge(sent, records[:95], "ttft", 0.8).met


def test_a_request_counts_from_when_it_should_have_been_sent() -> None:
    sent = _sent(20, 10.0)
    late = [
        Record(index=number, intended_s=at, sent_s=at + 1, first_s=at + 1.1, end_s=at + 1.2)
        for number, at in enumerate(sent.times)
    ]
    found = judge(sent, late, "ttft", 0.8)
    assert found.p95_s == pytest.approx(1.1) and not found.met


def test_the_whole_answer_and_the_first_token_are_judged_apart() -> None:
    sent = _sent(50, 10.0)
    records = _records(sent, 0.1, 0.9)
    assert judge(sent, records, "ttft", 0.8).met
    assert not judge(sent, records, "e2e", 0.8).met


def test_what_failed_took_for_ever() -> None:
    sent = _sent(20, 10.0)
    records = _records(sent, 0.1, 0.2)
    records[3:6] = [Record(index=n, intended_s=0.3, sent_s=0.3, end_s=0.4, error="status") for n in range(3, 6)]
    found = judge(sent, records, "ttft", 0.8)
    assert found.failed == 3 and not found.met


def test_what_was_sent_before_is_not_judged() -> None:
    sent = _sent(100, 10.0, judged_from=20)
    slow = [
        Record(index=number, intended_s=at, sent_s=at, first_s=at + (5.0 if number < 20 else 0.1), end_s=at + 6.0)
        for number, at in enumerate(sent.times)
    ]
    assert judge(sent, slow, "ttft", 0.8).p95_s == pytest.approx(0.1)


def test_a_server_that_falls_behind_does_not_keep_it() -> None:
    sent = _sent(400, 20.0)
    assert judge(sent, _records(sent, 0.1, 5.0), "ttft", 0.8).grows  # it fills up from nothing
    settled = Window(sent.requests, sent.times, sent.judged, 8.0, 20.0)
    assert judge(settled, _records(sent, 0.1, 5.0), "ttft", 0.8).met
    behind = judge(settled, _records(sent, 0.1, 5.0, growth=0.03), "ttft", 0.8)
    assert behind.grows and not behind.met and behind.p95_s < 0.8


def test_a_window_in_which_nothing_is_judged_proves_nothing() -> None:
    sent = Window([_ONE], [0.0], frozenset(), 0.5, 1.0)
    assert not judge(sent, _records(sent, 0.1, 0.2), "ttft", 0.8).met


def test_in_flight_is_a_mean_over_time() -> None:
    records = [
        Record(index=0, intended_s=0.0, sent_s=0.0, end_s=1.0),
        Record(index=1, intended_s=1.0, sent_s=1.0, end_s=4.0),
        Record(index=2, intended_s=3.0, sent_s=3.0),
    ]
    assert mean_in_flight(records, 0.0, 2.0) == pytest.approx(1.0)
    assert mean_in_flight(records, 2.0, 4.0) == pytest.approx(1.5)


def test_what_is_in_flight_by_thirds_of_the_time() -> None:
    sent = _sent(90, 10.0)
    settled = in_flight_by_thirds(_records(sent, 0.1, 1.0), 0.0, 9.0)
    assert settled == pytest.approx((8.5, 10.0, 10.0))  # 10 a second for a second each; at first there are none
    growing = in_flight_by_thirds(_records(sent, 0.1, 1.0, growth=0.05), 0.0, 9.0)
    assert growing[0] < growing[1] < growing[2]
