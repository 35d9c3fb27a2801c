"""Check that the client sent the requested workload, so that its faults are not taken for the server's."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from enginebay.lab.validity import limits
from enginebay.lab.validity.in_flight import filter_answered, filter_sent, mean_in_flight, upper_percentile
from enginebay.lab.validity.run_facts import SCHEDULED_PROFILES, STEADY_OPEN_PROFILES, RunFacts
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason, grade_figure, pick_gravest
from enginebay.lab.workload.request_records import Record


def send_lag(facts: RunFacts) -> Finding:
    """Check that requests were sent on time."""
    if facts.profile != "offline" and facts.profile not in SCHEDULED_PROFILES:
        return UNKNOWN  # a closed loop has no schedule
    lags = [record.sent_s - record.intended_s for record in filter_sent(facts.records)]
    if not lags or (facts.profile == "offline" and not facts.window_s):
        return UNKNOWN
    lag_s = upper_percentile(lags, 99)
    informative, invalid = (_lag_limit(facts, tier) for tier in (0, 1))
    message = f"requests were sent {lag_s * 1000:.1f} ms late (p99): the server did not see the requested arrivals"
    return grade_figure("send_lag", lag_s, informative, invalid, message)


def _lag_limit(facts: RunFacts, tier: int) -> float:
    if facts.profile == "offline":
        share = (facts.window_s or 0.0) * limits.OFFLINE_LAG_OF_WINDOW[tier]
    else:
        firsts = [
            record.first_s - record.sent_s for record in filter_answered(facts.records) if record.first_s is not None
        ]
        share = (median(firsts) if firsts else 0.0) * limits.SEND_LAG_OF_TTFT[tier]
    return max(limits.SEND_LAG_S[tier], share)


def delivered_rate(facts: RunFacts) -> Finding:
    """Check that requests were sent as fast as scheduled; the random draw itself is not the client's fault."""
    due = [record.intended_s for record in facts.records]
    if facts.profile not in SCHEDULED_PROFILES or len(due) < 2:
        return UNKNOWN
    sent = [record for record in facts.records if record.error != "unsent"]  # refusals are not the client's fault
    count = max(facts.scheduled or 0, len(due))
    last = max([record.sent_s for record in sent], default=0.0)
    scheduled_s = max(due) - min(due)
    actual_s = max(last, max(due)) - min(due)
    share = len(sent) / count * (scheduled_s / actual_s if actual_s > 0 else 1.0)
    message = f"the client delivered {share:.1%} of the scheduled rate ({len(sent)} of {count} requests)"
    return grade_figure("delivered_rate", 1 - share, *limits.RATE_SHORTFALL, message)


def drawn_rate(facts: RunFacts) -> Finding:
    """Check that the seeded schedule has about the requested rate."""
    due = [record.intended_s for record in facts.records]
    if facts.profile not in STEADY_OPEN_PROFILES or not facts.rate_per_s:
        return UNKNOWN
    if len(due) < limits.DRAWN_RATE_MIN or max(due) <= min(due):
        return UNKNOWN
    drawn = (len(due) - 1) / (max(due) - min(due))
    off = abs(drawn / facts.rate_per_s - 1)
    if off <= limits.DRAWN_RATE:
        return FINE
    message = f"the random schedule has {drawn:.3g} requests/s, not {facts.rate_per_s:g}: report that rate, or send more requests"
    return Reason("drawn_rate", "informative", message, off, limits.DRAWN_RATE)


def delivered_concurrency(facts: RunFacts) -> Finding:
    """Check that a closed loop held the requested concurrency, its drain included."""
    if facts.profile != "closed" or not facts.concurrency or not facts.window_s:
        return UNKNOWN
    mean = mean_in_flight(filter_sent(facts.records), facts.window_s)
    off = abs(mean / facts.concurrency - 1)
    message = (
        f"{mean:.1f} requests in flight on average, {facts.concurrency} requested: "
        "the drain at the end weighs too much (send more requests), or the client cannot keep up"
    )
    return grade_figure("delivered_concurrency", off, *limits.CONCURRENCY_OFF, message)


def client_saturated(facts: RunFacts) -> Finding:
    """Check that the client was far enough from its ceiling to measure the server, not itself."""
    return pick_gravest(_check_ceiling(facts), _check_client_core(facts))


def _check_ceiling(facts: RunFacts) -> Finding:
    ceiling, window_s = facts.ceiling, facts.window_s
    if ceiling is None or not window_s:
        return UNKNOWN
    rates = (
        ("requests", len(filter_sent(facts.records)) / window_s, ceiling.requests_per_s),
        ("events", sum(record.events for record in facts.records) / window_s, ceiling.events_per_s),
    )
    shares = [(rate / highest, unit, rate, highest) for unit, rate, highest in rates if highest]
    if not shares:
        return UNKNOWN
    share, unit, rate, highest = max(shares)
    message = f"{rate:.0f} {unit}/s are {share:.0%} of this client's ceiling ({highest:.0f}/s)"
    return grade_figure("client_saturated", share, *limits.CEILING_SHARE, message)


def _check_client_core(facts: RunFacts) -> Finding:
    if facts.client_core_share is None:
        return UNKNOWN
    message = f"a client process used {facts.client_core_share:.0%} of its core: it timestamps arrivals late"
    return grade_figure("client_saturated", facts.client_core_share, *limits.CLIENT_CORE_SHARE, message)


def impossible_records(facts: RunFacts) -> Finding:
    """Check that times and counts of each record are consistent."""
    if not facts.records:
        return UNKNOWN
    wrong = [record for record in facts.records if _find_contradiction(record)]
    if not wrong:
        return FINE
    message = f"{len(wrong)} records are inconsistent, first number {wrong[0].index}: {_find_contradiction(wrong[0])}"
    return Reason("impossible_records", "invalid", message, float(len(wrong)), 0.0)


def _find_contradiction(record: Record) -> str:
    """Return what is wrong with the record, or an empty string. NaN times fail every comparison."""
    if not record.sent_s >= record.intended_s - limits.EARLY_S:
        return "sent before it was due"
    if record.error is not None:
        return ""
    if record.end_s is None or record.output_tokens is None:
        return "no error, but no end or no token count"
    times = [record.sent_s, record.first_s, record.last_s, record.end_s]
    known = [time for time in times if time is not None]
    if not all(before <= after for before, after in pairwise(known)):
        return "output before the request or after the end"
    if bool(record.output_tokens) != bool(record.events):
        return f"{record.output_tokens} tokens in {record.events} events"
    return ""
