"""Whether the run measured a steady state: otherwise its numbers depend on how long it was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from enginebay.lab.validity import limits
from enginebay.lab.validity.in_flight import count_in_flight, e2e_s, filter_answered, filter_sent, mean_in_flight
from enginebay.lab.validity.run_facts import STEADY_OPEN_PROFILES, STEADY_PROFILES, RunFacts
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason, grade_figure


def littles_law(facts: RunFacts) -> Finding:
    """Mean in flight = rate x mean time: the rate and time that are published, and what the server itself had in flight.

    Both sides out of the client's own records would be equal whatever happened, so without the server's count nothing is claimed.
    """
    if facts.profile not in STEADY_PROFILES | {"trace"} or not facts.window_s or facts.server_in_flight is None:
        return UNKNOWN
    flow = _get_published_flow(facts) or _compute_recorded_flow(facts, facts.window_s)
    if flow is None or flow[0] * flow[1] <= 0:
        return UNKNOWN
    rate, time_s = flow
    counted, gone = facts.server_in_flight, filter_sent(facts.records)
    # Failures are no part of what is published, and the server had them all the same.
    failures = mean_in_flight([record for record in gone if record.error is not None], facts.window_s)
    ours, late = rate * time_s + failures, limits.COUNTED_LATE_S * len(gone) / facts.window_s
    said = (
        f"{rate:.3g} requests/s x {time_s:.3g} s = {rate * time_s:.3g} in flight, and the server counts {counted:.3g}"
    )
    if counted > ours:
        message = f"{said}: the figures leave requests out, or others asked the server too"
        return grade_figure("littles_law", max(0.0, counted - ours - late) / ours, *limits.LITTLES_LAW, message)
    missing = max(0.0, ours - counted - late) / ours
    if missing <= limits.OUTSIDE_SERVER:
        return FINE
    message = f"{said}: the rest was spent on the way to it and back, or the figures count what was not asked"
    return Reason("littles_law", "informative", message, missing, limits.OUTSIDE_SERVER)


def _get_published_flow(facts: RunFacts) -> tuple[float, float] | None:
    measures = facts.measures or {}
    rate, times = measures.get("requests_per_s"), measures.get("e2e_s")
    time_s = times.get("mean") if isinstance(times, Mapping) else None
    return (float(rate), float(time_s)) if rate is not None and time_s is not None else None


def _compute_recorded_flow(facts: RunFacts, window_s: float) -> tuple[float, float] | None:
    times = [
        e2e_s(record)
        for record in filter_answered(facts.records)
        if record.end_s is not None and record.end_s <= window_s
    ]
    known = [time_s for time_s in times if time_s is not None]
    return (len(known) / window_s, fmean(known)) if known else None


def backlog_grows(facts: RunFacts) -> Finding:
    """In an open loop the server keeps up: else latency is a matter of how long one waits.

    Throughput above capacity is a fair number, and so is that point of a curve: this never makes a run invalid.
    """
    if facts.profile not in STEADY_OPEN_PROFILES:
        return UNKNOWN
    gone = filter_sent(facts.records)
    times = sorted(record.sent_s for record in gone)
    if not times:
        return UNKNOWN
    middle, last = (times[0] + times[-1]) / 2, times[-1]
    arrivals = sum(time > middle for time in times)
    if arrivals < limits.BACKLOG_MIN_ARRIVALS:
        return UNKNOWN
    before, after = count_in_flight(gone, middle), count_in_flight(gone, last)
    growth = (after - before) / arrivals
    # What is in flight at a moment scatters at least like a Poisson count; a difference of two like their sum.
    if growth <= limits.BACKLOG_GROWTH or after - before <= limits.BACKLOG_SIGMAS * math.sqrt(before + after):
        return FINE
    message = (
        f"in flight rose from {before} to {after} in the second half: the server falls behind, "
        "so latencies depend on the length of the run; the throughput is a ceiling"
    )
    return Reason("backlog_grows", "informative", message, growth, limits.BACKLOG_GROWTH)


def unstable_warmup(facts: RunFacts) -> Finding:
    """The measured window begins after the warm-up, or hardly before its end."""
    if (
        facts.profile not in STEADY_PROFILES
        or facts.warmup is None
        or len(facts.warmup.values) < limits.WARMUP_MIN_VALUES
    ):
        return UNKNOWN
    if not facts.warmup.over:
        return _grade_never_steady(facts, facts.warmup.values)
    values, end = facts.warmup.values, facts.warmup.end
    bias = _relative_difference(fmean(values), fmean(values[end:]))
    if bias <= limits.WARMUP_BIAS:
        return FINE
    message = f"the first {end} of {len(values)} requests were still warm-up and move the mean by {bias:.0%}"
    return Reason("unstable_warmup", "informative", message, bias, limits.WARMUP_BIAS)


def _grade_never_steady(facts: RunFacts, values: Sequence[float]) -> Finding:
    half = len(values) // 2
    early, late = fmean(values[:half]), fmean(values[half:])
    apart = _relative_difference(early, late)
    if apart <= limits.WARMUP_HALVES:  # by chance alone noise is cut late too: only a change that one can see counts
        return FINE
    message = (
        f"no steady state: the first half's mean is {early:.3g}, the second's {late:.3g}; warm up or measure longer"
    )
    if facts.profile not in STEADY_OPEN_PROFILES or early > late:
        return Reason("unstable_warmup", "invalid", message, apart, limits.WARMUP_HALVES)
    # Engines grow faster as they warm up. What grows slower in an open loop is a queue, near capacity or above.
    if isinstance(backlog_grows(facts), Reason):
        return FINE
    return Reason("unstable_warmup", "informative", message, apart, limits.WARMUP_HALVES)


def _relative_difference(value: float, reference: float) -> float:
    return abs(value / reference - 1) if reference else float(value != reference)
