from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from enginebay.lab.validity.run_facts import RunFacts, WarmupFacts
from enginebay.lab.validity.steady_checks import backlog_grows, littles_law, unstable_warmup
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason
from enginebay.lab.workload.request_records import Record
from tests.unit.lab.validity.judged_runs import make_closed_loop, make_failed, make_open_loop, make_paced, make_record


def severity(finding: Finding) -> str:
    return finding.severity if isinstance(finding, Reason) else finding.value


def queued(rate: float, service_s: float, count: int, seed: int = 1) -> list[Record]:
    """Poisson arrivals at one server with `service_s` each; above rate x service_s = 1 it falls behind."""
    chance = random.Random(seed)
    at = free = 0.0
    records = []
    for index in range(count):
        at += chance.expovariate(rate)
        free = max(at, free) + service_s
        records.append(make_record(index, at, free - at, sent_s=at))
    return records


def poisson(records: list[Record], rate: float) -> RunFacts:
    return make_open_loop(records, profile="poisson", rate_per_s=rate)


@pytest.mark.parametrize(
    ("counted", "expected"),
    [(4.0, "fine"), (4.2, "fine"), (4.3, "informative"), (5.0, "invalid"), (3.3, "fine"), (3.0, "informative"),
     (0.0, "informative"), (None, "unknown")],
)  # fmt: skip
def test_what_is_published_is_held_against_the_servers_count(counted: float | None, expected: str) -> None:
    """Four in flight, a second each. Moderate network time is no fault of the figures."""
    assert severity(littles_law(make_closed_loop(server_in_flight=counted))) == expected


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, "fine"), (0.9, "informative"), (0.5, "invalid"), (2.0, "informative")]
)
def test_a_published_rate_that_the_server_does_not_bear_out(factor: float, expected: str) -> None:
    measures = {"requests_per_s": 4.0 * factor, "e2e_s": {"mean": 1.0}}
    assert severity(littles_law(make_closed_loop(server_in_flight=4.0, measures=measures))) == expected


def test_failures_were_with_the_server_too() -> None:
    """40 s with four in flight, plus two that fail."""
    wrong = [replace(make_failed(index, index / 2, "status"), end_s=index / 2 + 1.0) for index in range(80)]
    facts = make_closed_loop(rounds=40, server_in_flight=6.0)
    assert littles_law(replace(facts, records=[*facts.records, *wrong])) is FINE
    assert severity(littles_law(facts)) == "invalid"


def test_a_short_request_may_be_counted_a_little_longer_or_shorter() -> None:
    quick = [make_record(index, index / 100, 0.01, sent_s=index / 100) for index in range(1000)]
    for counted, expected in ((0.4, "fine"), (1.45, "fine"), (0.1, "informative"), (1.9, "invalid")):
        found = littles_law(make_open_loop(quick, window_s=10.0, server_in_flight=counted))
        assert severity(found) == expected, counted


def test_the_law_is_for_steady_loads_with_a_window() -> None:
    assert littles_law(make_closed_loop(profile="offline", server_in_flight=9.0)) is UNKNOWN
    assert littles_law(make_closed_loop(window_s=None, server_in_flight=9.0)) is UNKNOWN


@pytest.mark.parametrize("seed", range(5))
def test_a_server_that_falls_behind(seed: int) -> None:
    found = backlog_grows(poisson(queued(10.0, 0.13, 600, seed), 10.0))
    assert severity(found) == "informative"


@pytest.mark.parametrize("seed", range(20))
def test_a_server_that_keeps_up(seed: int) -> None:
    assert backlog_grows(poisson(queued(10.0, 0.06, 600, seed), 10.0)) is FINE


def test_few_arrivals_and_closed_loops_do_not_check_the_backlog() -> None:
    assert backlog_grows(make_open_loop(make_paced(30))) is UNKNOWN
    assert backlog_grows(make_closed_loop()) is UNKNOWN


def series(first: float, count: int = 100, slow: int = 30) -> list[float]:
    return [first] * slow + [1.0] * (count - slow)


def test_a_warm_up_inside_the_window_moves_the_mean() -> None:
    found = unstable_warmup(make_closed_loop(warmup=WarmupFacts(series(2.0), end=30, over=True)))
    assert severity(found) == "informative"
    assert isinstance(found, Reason) and found.figure == pytest.approx(fmean(series(2.0)) - 1)
    assert unstable_warmup(make_closed_loop(warmup=WarmupFacts(series(1.1), end=30, over=True))) is FINE


def test_a_run_that_never_became_steady() -> None:
    rising = [1.0 + index / 100 for index in range(100)]
    assert severity(unstable_warmup(make_closed_loop(warmup=WarmupFacts(rising, end=50, over=False)))) == "invalid"


def test_in_an_open_loop_a_slower_start_is_a_warm_up_and_a_faster_one_a_queue() -> None:
    rising = [1.0 + index / 100 for index in range(100)]
    assert severity(unstable_warmup(make_open_loop(warmup=WarmupFacts(rising, end=50, over=False)))) == "informative"
    assert severity(unstable_warmup(make_open_loop(warmup=WarmupFacts(rising[::-1], end=50, over=False)))) == "invalid"


def test_noise_that_is_cut_late_is_no_trend() -> None:
    noise = [1.0 + (index % 7) / 100 for index in range(100)]
    assert unstable_warmup(make_closed_loop(warmup=WarmupFacts(noise, end=50, over=False))) is FINE


def test_an_overload_has_its_own_code() -> None:
    records = queued(10.0, 0.13, 600)
    latencies = [(one.end_s or 0.0) - one.sent_s for one in records]
    facts = replace(poisson(records, 10.0), warmup=WarmupFacts(latencies, end=300, over=False))
    assert unstable_warmup(facts) is FINE
    assert severity(backlog_grows(facts)) == "informative"


def test_few_values_and_ramps_do_not_check_the_warm_up() -> None:
    assert unstable_warmup(make_closed_loop()) is UNKNOWN
    assert unstable_warmup(make_closed_loop(warmup=WarmupFacts([9.0] * 5 + [1.0] * 10, end=5, over=True))) is UNKNOWN
    assert (
        unstable_warmup(make_open_loop(profile="ramp", warmup=WarmupFacts(series(2.0), end=30, over=True))) is UNKNOWN
    )
