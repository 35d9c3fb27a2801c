"""Check that the run measured a steady state; otherwise its numbers depend on its length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from enginebay.lab.validity import limits
from enginebay.lab.validity.in_flight import count_in_flight, filter_answered, filter_sent, mean_in_flight
from enginebay.lab.validity.run_facts import STEADY_OPEN_PROFILES, STEADY_PROFILES, RunFacts
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason, grade_figure


def littles_law(facts: RunFacts) -> Finding:
    """Check Little's law: published rate x mean time against the server's own mean in flight.

    From the client's records alone both sides are always equal, so without the server's count nothing is claimed.
    """
    if facts.profile not in STEADY_PROFILES | {"trace"} or not facts.window_s or facts.server_in_flight is None:
        return UNKNOWN
    flow = _get_published_flow(facts) or _compute_recorded_flow(facts, facts.window_s)
    if flow is None or flow[0] * flow[1] <= 0:
        return UNKNOWN
    rate, time_s = flow
    counted, sent = facts.server_in_flight, filter_sent(facts.records)
    # Failures are not in the published figures, but the server held them too.
    failures = mean_in_flight([record for record in sent if record.error is not None], facts.window_s)
    expected, late = rate * time_s + failures, limits.COUNTED_LATE_S * len(sent) / facts.window_s
    summary = (
        f"{rate:.3g} requests/s x {time_s:.3g} s = {rate * time_s:.3g} in flight, but the server counts {counted:.3g}"
    )
    if counted > expected:
        message = f"{summary}: the figures miss requests, or other clients used the server"
        return grade_figure("littles_law", max(0.0, counted - expected - late) / expected, *limits.LITTLES_LAW, message)
    missing = max(0.0, expected - counted - late) / expected
    if missing <= limits.OUTSIDE_SERVER:
        return FINE
    message = f"{summary}: the rest is network time, or the figures count requests that were never sent"
    return Reason("littles_law", "informative", message, missing, limits.OUTSIDE_SERVER)


def _get_published_flow(facts: RunFacts) -> tuple[float, float] | None:
    measures = facts.measures or {}
    rate, times = measures.get("requests_per_s"), measures.get("e2e_s")
    time_s = times.get("mean") if isinstance(times, Mapping) else None
    return (float(rate), float(time_s)) if rate is not None and time_s is not None else None


def _compute_recorded_flow(facts: RunFacts, window_s: float) -> tuple[float, float] | None:
    times = [
        record.end_s - record.sent_s
        for record in filter_answered(facts.records)
        if record.end_s is not None and record.end_s <= window_s
    ]
    return (len(times) / window_s, fmean(times)) if times else None


def backlog_grows(facts: RunFacts) -> Finding:
    """Check that the server keeps up with an open loop; otherwise latency depends on the length of the run.

    Throughput above capacity is a valid number, and so is that point of a curve: this never makes a run invalid.
    """
    if facts.profile not in STEADY_OPEN_PROFILES:
        return UNKNOWN
    sent = filter_sent(facts.records)
    times = sorted(record.sent_s for record in sent)
    if not times:
        return UNKNOWN
    middle, last = (times[0] + times[-1]) / 2, times[-1]
    arrivals = sum(time > middle for time in times)
    if arrivals < limits.BACKLOG_MIN_ARRIVALS:
        return UNKNOWN
    before, after = count_in_flight(sent, middle), count_in_flight(sent, last)
    growth = (after - before) / arrivals
    # The number in flight varies at least like a Poisson count, a difference of two like their sum.
    if growth <= limits.BACKLOG_GROWTH or after - before <= limits.BACKLOG_SIGMAS * math.sqrt(before + after):
        return FINE
    message = (
        f"requests in flight rose from {before} to {after} in the second half: the server falls behind, "
        "so latencies depend on the length of the run; the throughput is a ceiling"
    )
    return Reason("backlog_grows", "informative", message, growth, limits.BACKLOG_GROWTH)


def unstable_warmup(facts: RunFacts) -> Finding:
    """Check that the measured window starts after the warm-up."""
    warmup = facts.warmup
    if facts.profile not in STEADY_PROFILES or warmup is None or len(warmup.values) < limits.WARMUP_MIN_VALUES:
        return UNKNOWN
    values, end = warmup.values, warmup.end
    if not warmup.over:
        return _grade_never_steady(facts, values)
    bias = _relative_difference(fmean(values), fmean(values[end:]))
    if bias <= limits.WARMUP_BIAS:
        return FINE
    message = f"the first {end} of {len(values)} requests were still warm-up and shift the mean by {bias:.0%}"
    return Reason("unstable_warmup", "informative", message, bias, limits.WARMUP_BIAS)


def _grade_never_steady(facts: RunFacts, values: Sequence[float]) -> Finding:
    half = len(values) // 2
    early, late = fmean(values[:half]), fmean(values[half:])
    apart = _relative_difference(early, late)
    if apart <= limits.WARMUP_HALVES:  # noise can be cut late by chance, so require a visible change
        return FINE
    message = (
        f"no steady state: the first half's mean is {early:.3g}, the second's {late:.3g}; warm up or measure longer"
    )
    if facts.profile not in STEADY_OPEN_PROFILES or early > late:
        return Reason("unstable_warmup", "invalid", message, apart, limits.WARMUP_HALVES)
    # Engines speed up as they warm up. An open loop that slows down has a queue, near or above capacity.
    if isinstance(backlog_grows(facts), Reason):
        return FINE
    return Reason("unstable_warmup", "informative", message, apart, limits.WARMUP_HALVES)


def _relative_difference(value: float, reference: float) -> float:
    return abs(value / reference - 1) if reference else float(value != reference)
