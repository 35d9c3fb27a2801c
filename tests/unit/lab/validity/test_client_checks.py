from __future__ import annotations

import math
from dataclasses import replace

import pytest

from enginebay.lab.validity.client_checks import (
    client_saturated,
    delivered_concurrency,
    delivered_rate,
    drawn_rate,
    impossible_records,
    send_lag,
)
from enginebay.lab.validity.run_facts import CeilingFacts, RunFacts
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason
from enginebay.lab.workload.request_records import Record
from tests.unit.lab.validity.judged_runs import make_closed_loop, make_failed, make_open_loop, make_paced, make_record


def severity(finding: Finding) -> str:
    return finding.severity if isinstance(finding, Reason) else finding.value


def late(by_s: float, took_s: float = 0.01, share: int = 10) -> list[Record]:
    """Every tenth request is late; the time to the first token is a quarter of `took_s`."""
    return [
        replace(
            one, sent_s=one.intended_s + by_s, first_s=one.intended_s + by_s + took_s / 4, end_s=100.0, last_s=100.0
        )
        if one.index % share == 0
        else one
        for one in make_paced(took_s=took_s)
    ]


@pytest.mark.parametrize(("by_s", "expected"), [(0.004, "fine"), (0.006, "informative"), (0.026, "invalid")])
def test_late_requests_are_seen(by_s: float, expected: str) -> None:
    assert severity(send_lag(make_open_loop(late(by_s)))) == expected


@pytest.mark.parametrize(("by_s", "expected"), [(0.019, "fine"), (0.03, "informative"), (0.11, "invalid")])
def test_lag_may_grow_with_the_time_to_the_first_token(by_s: float, expected: str) -> None:
    assert severity(send_lag(make_open_loop(late(by_s, took_s=4.0)))) == expected


def test_one_late_request_in_a_thousand_is_below_the_percentile() -> None:
    records = make_paced(1000, took_s=0.01)
    records[500] = replace(records[500], sent_s=records[500].intended_s + 0.006, first_s=60.0, last_s=60.0, end_s=60.0)
    assert send_lag(make_open_loop(records)) is FINE
    assert severity(send_lag(make_open_loop(records[450:550]))) == "fine"
    assert severity(send_lag(make_open_loop(records[480:530]))) == "informative"  # of 50, p99 is the maximum


def test_a_closed_loop_has_no_lag_and_no_rate() -> None:
    assert send_lag(make_closed_loop()) is UNKNOWN
    assert delivered_rate(make_closed_loop()) is UNKNOWN


@pytest.mark.parametrize(("by_s", "expected"), [(0.9, "fine"), (1.5, "informative"), (6.0, "invalid")])
def test_offline_the_window_is_the_measure(by_s: float, expected: str) -> None:
    records = [make_record(index, 0.0, took_s=100.0, sent_s=by_s) for index in range(50)]
    assert severity(send_lag(RunFacts(records, window_s=100.0, profile="offline"))) == expected


@pytest.mark.parametrize(("unsent", "expected"), [(0, "fine"), (8, "informative"), (40, "invalid")])
def test_requests_that_were_never_sent_are_missed(unsent: int, expected: str) -> None:
    kept = make_paced()[: 400 - unsent]
    lost = [make_failed(index, index / 10, "unsent") for index in range(400 - unsent, 400)]
    assert severity(delivered_rate(make_open_loop([*kept, *lost]))) == expected
    assert severity(delivered_rate(make_open_loop(kept, scheduled=400))) == expected


@pytest.mark.parametrize(("stretch", "expected"), [(1.0, "fine"), (1.03, "informative"), (1.1, "invalid")])
def test_a_schedule_that_takes_longer_is_a_lower_rate(stretch: float, expected: str) -> None:
    records = [replace(one, sent_s=one.intended_s * stretch) for one in make_paced()]
    assert severity(delivered_rate(make_open_loop(records))) == expected


def test_a_client_that_sent_nothing_delivered_nothing() -> None:
    lost = [make_failed(index, index / 10, "unsent") for index in range(10)]
    assert severity(delivered_rate(make_open_loop(lost))) == "invalid"


def test_a_server_that_refuses_is_not_the_clients_fault() -> None:
    refused = [make_failed(index, index / 10, "connect") for index in range(350, 400)]
    assert delivered_rate(make_open_loop([*make_paced(350), *refused])) is FINE


def test_the_random_rate_is_checked_against_the_requested_rate() -> None:
    assert drawn_rate(make_open_loop(rate_per_s=10.2)) is FINE
    found = drawn_rate(make_open_loop(rate_per_s=12.0))
    assert severity(found) == "informative"
    assert drawn_rate(make_open_loop(make_paced(199), rate_per_s=12.0)) is UNKNOWN
    assert drawn_rate(make_open_loop(rate_per_s=None)) is UNKNOWN


@pytest.mark.parametrize(("asked", "expected"), [(20, "fine"), (22, "informative"), (26, "invalid"), (15, "invalid")])
def test_concurrency_that_was_not_held(asked: int, expected: str) -> None:
    assert severity(delivered_concurrency(replace(make_closed_loop(20), concurrency=asked))) == expected


def test_a_drain_that_weighs_too_much() -> None:
    """40 requests at concurrency 32 are two rounds, the second with 8."""
    records = [make_record(index, 0.0 if index < 32 else 1.0, sent_s=0.0 if index < 32 else 1.0) for index in range(40)]
    facts = RunFacts(records, window_s=2.0, profile="closed", concurrency=32)
    assert severity(delivered_concurrency(facts)) == "invalid"
    assert delivered_concurrency(make_open_loop(concurrency=32)) is UNKNOWN


@pytest.mark.parametrize(("most", "expected"), [(30.0, "fine"), (15.0, "informative"), (11.0, "invalid")])
def test_near_its_ceiling_the_client_measures_itself(most: float, expected: str) -> None:
    facts = make_open_loop()
    assert severity(client_saturated(replace(facts, ceiling=CeilingFacts(requests_per_s=most)))) == expected
    assert severity(client_saturated(replace(facts, ceiling=CeilingFacts(1000.0, events_per_s=most * 16)))) == expected


@pytest.mark.parametrize(("share", "expected"), [(0.5, "fine"), (0.8, "informative"), (0.95, "invalid")])
def test_a_busy_client_stamps_late(share: float, expected: str) -> None:
    assert severity(client_saturated(make_open_loop(client_core_share=share))) == expected


def test_without_a_ceiling_nothing_is_claimed() -> None:
    assert client_saturated(make_open_loop()) is UNKNOWN
    assert client_saturated(make_open_loop(ceiling=CeilingFacts())) is UNKNOWN


@pytest.mark.parametrize(
    "changes",
    [
        {"sent_s": 0.9},
        {"sent_s": math.nan},
        {"first_s": 0.5},
        {"last_s": 1.1, "first_s": 1.2},
        {"end_s": 1.5},
        {"end_s": None},
        {"output_tokens": None},
        {"events": 0},
        {"output_tokens": 0},
    ],
)
def test_what_cannot_be_true(changes: dict[str, float | None]) -> None:
    found = impossible_records(RunFacts([make_record(0, 1.0), make_record(7, 1.0, **changes)]))
    assert severity(found) == "invalid"
    assert isinstance(found, Reason) and "number 7" in found.message and found.figure == 1.0


def test_what_can_be_true() -> None:
    empty = make_record(1, 1.0, output_tokens=0, events=0, first_s=None, last_s=None)
    assert impossible_records(RunFacts([make_record(0, 1.0), empty, make_failed(2, 1.0, "closed")])) is FINE
