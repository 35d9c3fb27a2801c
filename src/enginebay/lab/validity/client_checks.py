"""Whether the client sent the load that was asked for. Its own faults must not be read as the server's."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from enginebay.lab.validity import limits
from enginebay.lab.validity.in_flight import filter_answered, filter_sent, mean_in_flight, upper_percentile
from enginebay.lab.validity.run_facts import SCHEDULED_PROFILES, STEADY_OPEN_PROFILES, RunFacts
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason, grade_figure, pick_gravest
from enginebay.lab.workload.request_records import Record


def send_lag(facts: RunFacts) -> Finding:
    """Requests left when they should have."""
    if facts.profile != "offline" and facts.profile not in SCHEDULED_PROFILES:
        return UNKNOWN  # a closed loop has no intended times
    lags = [record.sent_s - record.intended_s for record in filter_sent(facts.records)]
    if not lags or (facts.profile == "offline" and not facts.window_s):
        return UNKNOWN
    lag_s = upper_percentile(lags, 99)
    informative, invalid = (_lag_limit(facts, tier) for tier in (0, 1))
    message = f"requests left {lag_s * 1000:.1f} ms late (p99): the server saw other arrivals than those asked for"
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
    """As many requests left, in as little time, as the schedule says: the draw itself is not held against the client."""
    due = [record.intended_s for record in facts.records]
    if facts.profile not in SCHEDULED_PROFILES or len(due) < 2:
        return UNKNOWN
    gone = [record for record in facts.records if record.error != "unsent"]  # refused is not the client's fault
    count = max(facts.scheduled or 0, len(due))
    last = max([record.sent_s for record in gone], default=0.0)
    asked_s = max(due) - min(due)
    took_s = max(last, max(due)) - min(due)
    share = len(gone) / count * (asked_s / took_s if took_s > 0 else 1.0)
    message = f"the client delivered {share:.1%} of the scheduled rate ({len(gone)} of {count} requests)"
    return grade_figure("delivered_rate", 1 - share, *limits.RATE_SHORTFALL, message)


def drawn_rate(facts: RunFacts) -> Finding:
    """The seeded schedule has about the rate that names the run."""
    due = [record.intended_s for record in facts.records]
    if facts.profile not in STEADY_OPEN_PROFILES or not facts.rate_per_s:
        return UNKNOWN
    if len(due) < limits.DRAWN_RATE_MIN or max(due) <= min(due):
        return UNKNOWN
    drawn = (len(due) - 1) / (max(due) - min(due))
    off = abs(drawn / facts.rate_per_s - 1)
    if off <= limits.DRAWN_RATE:
        return FINE
    message = (
        f"the schedule drawn has {drawn:.3g} requests/s, not {facts.rate_per_s:g}: quote that, or draw more requests"
    )
    return Reason("drawn_rate", "informative", message, off, limits.DRAWN_RATE)


def delivered_concurrency(facts: RunFacts) -> Finding:
    """A closed loop held as many requests in flight as asked for, its drain included."""
    if facts.profile != "closed" or not facts.concurrency or not facts.window_s:
        return UNKNOWN
    mean = mean_in_flight(filter_sent(facts.records), facts.window_s)
    off = abs(mean / facts.concurrency - 1)
    message = (
        f"{mean:.1f} requests in flight on average, {facts.concurrency} asked for: "
        "the drain at the end weighs too much (ask for more requests), or the client cannot keep up"
    )
    return grade_figure("delivered_concurrency", off, *limits.CONCURRENCY_OFF, message)


def client_saturated(facts: RunFacts) -> Finding:
    """The client was far enough from its own ceiling for its times to be the server's."""
    return pick_gravest(_check_ceiling(facts), _check_client_core(facts))


def _check_ceiling(facts: RunFacts) -> Finding:
    ceiling, window_s = facts.ceiling, facts.window_s
    if ceiling is None or not window_s:
        return UNKNOWN
    rates = (
        ("requests", len(filter_sent(facts.records)) / window_s, ceiling.requests_per_s),
        ("events", sum(record.events for record in facts.records) / window_s, ceiling.events_per_s),
    )
    shares = [(rate / most, what, rate, most) for what, rate, most in rates if most]
    if not shares:
        return UNKNOWN
    share, what, rate, most = max(shares)
    message = f"{rate:.0f} {what}/s are {share:.0%} of what this client can do here ({most:.0f}/s)"
    return grade_figure("client_saturated", share, *limits.CEILING_SHARE, message)


def _check_client_core(facts: RunFacts) -> Finding:
    if facts.client_core_share is None:
        return UNKNOWN
    message = f"a process of the client used {facts.client_core_share:.0%} of its core: arrivals are stamped late"
    return grade_figure("client_saturated", facts.client_core_share, *limits.CLIENT_CORE_SHARE, message)


def impossible_records(facts: RunFacts) -> Finding:
    """Causes come before effects."""
    if not facts.records:
        return UNKNOWN
    wrong = [record for record in facts.records if _find_contradiction(record)]
    if not wrong:
        return FINE
    message = f"{len(wrong)} records cannot be true, first number {wrong[0].index}: {_find_contradiction(wrong[0])}"
    return Reason("impossible_records", "invalid", message, float(len(wrong)), 0.0)


def _find_contradiction(record: Record) -> str:
    """What is wrong with it; empty when nothing is. Comparisons are such that a time that is no number is wrong."""
    if not record.sent_s >= record.intended_s - limits.EARLY_S:
        return "sent before it was due"
    if record.error is not None:
        return ""
    if record.end_s is None or record.output_tokens is None:
        return "no error, and no end or no count of tokens"
    times = [record.sent_s, record.first_s, record.last_s, record.end_s]
    known = [time for time in times if time is not None]
    if not all(before <= after for before, after in pairwise(known)):
        return "output before it was asked for, or after the end"
    if bool(record.output_tokens) != bool(record.events):
        return f"{record.output_tokens} tokens in {record.events} events"
    return ""
