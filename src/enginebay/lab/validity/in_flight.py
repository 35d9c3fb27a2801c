"""Requests in flight, from records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from enginebay.lab.workload.request_records import Record

_NEVER_LEFT = ("unsent", "connect")


def filter_answered(records: Iterable[Record]) -> list[Record]:
    """Return the requests that have an answer."""
    return [record for record in records if record.error is None]


def filter_sent(records: Iterable[Record]) -> list[Record]:
    """Return the requests that left the client."""
    return [record for record in records if record.error not in _NEVER_LEFT]


def mean_in_flight(records: Iterable[Record], window_s: float) -> float:
    """Return the mean concurrency over the window."""
    return sum(_overlap_s(record, window_s) for record in records) / window_s


def _overlap_s(record: Record, window_s: float) -> float:
    end = window_s if record.end_s is None else min(record.end_s, window_s)
    return max(0.0, end - max(record.sent_s, 0.0))


def count_in_flight(records: Iterable[Record], moment_s: float) -> int:
    """Return how many requests were sent and had not ended."""
    return sum(record.sent_s <= moment_s and (record.end_s is None or record.end_s > moment_s) for record in records)


def upper_percentile(values: Sequence[float], percentile: float) -> float:
    """Return the percentile by upper nearest rank: the maximum if there are few values; see `count_needed`."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percentile // 100)
    return ordered[max(0, min(len(ordered) - 1, int(rank) - 1))]
