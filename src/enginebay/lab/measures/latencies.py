"""Latencies of each request, from its actual and from its intended send time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.lab.workload.request_records import Record


def filter_answered(records: Sequence[Record]) -> list[Record]:
    """Return the requests that completed: only they have latencies and tokens."""
    return [record for record in records if record.error is None and record.end_s is not None]


def ttft_s(record: Record, *, intended: bool = False) -> float | None:
    """Return the time to the first output; None if there was no output."""
    return None if record.first_s is None else record.first_s - _start_time_s(record, intended)


def e2e_s(record: Record, *, intended: bool = False) -> float | None:
    """Return the time to the end of the response."""
    return None if record.end_s is None else record.end_s - _start_time_s(record, intended)


def tpot_s(record: Record) -> float | None:
    """Return the time per output token after the first; None with fewer than two tokens."""
    if record.first_s is None or record.last_s is None or (record.output_tokens or 0) < 2:
        return None
    assert record.output_tokens is not None
    return (record.last_s - record.first_s) / (record.output_tokens - 1)


def collect_send_lags_s(records: Sequence[Record]) -> list[float]:
    """Return how late each request was sent, failed ones included."""
    return [record.sent_s - record.intended_s for record in records if record.error != "unsent"]


def collect_token_gaps_s(records: Sequence[Record], tokens: Mapping[int, Sequence[float]]) -> Any:
    """Return the gaps between successive outputs of each response, all in one array.

    A server may send several tokens at once, so gaps are between arrivals, not between tokens.
    """
    import numpy as np

    gaps = [np.diff(np.asarray(tokens[record.index], dtype=np.float64)) for record in records if record.index in tokens]
    return np.concatenate(gaps) if gaps else np.empty(0)


def _start_time_s(record: Record, intended: bool) -> float:
    return record.intended_s if intended else record.sent_s
