"""Cumulative latency curves of a point, small enough to embed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from enginebay.lab.measures.latencies import (
    collect_send_lags_s,
    collect_token_gaps_s,
    e2e_s,
    filter_answered,
    tpot_s,
    ttft_s,
)
from enginebay.lab.store.run_reader import Run
from enginebay.lab.workload.request_records import Record

MAX_EXACT_VALUES = 1000  # curves of up to this many values keep all of them
QUANTILE_LEVELS = 500  # for longer ones


@dataclass(frozen=True, slots=True)
class LatencyKind:
    """One kind of latency, and how to read it from a record."""

    key: str
    title: str
    read_latency: Callable[[Record], float | None]


LATENCY_KINDS: tuple[LatencyKind, ...] = (
    LatencyKind("ttft_s", "Time to first token", ttft_s),
    LatencyKind("tpot_s", "Time per output token", tpot_s),
    LatencyKind("e2e_s", "End to end", e2e_s),
    LatencyKind(
        "ttft_from_intended_s", "Time to first token, from the intended send time", partial(ttft_s, intended=True)
    ),
    LatencyKind("e2e_from_intended_s", "End to end, from the intended send time", partial(e2e_s, intended=True)),
    LatencyKind("queue_s", "Queue time, as reported by the server", lambda record: record.queue_s),
)
LATENCY_TITLES = {kind.key: kind.title for kind in LATENCY_KINDS} | {
    "itl_s": "Inter-token latency",
    "send_lag_s": "Send lag of the client",
}


def build_curves(runs: Sequence[Run]) -> dict[str, dict[str, object]]:
    """Return the curve of every measured latency over the completed requests of these runs."""
    values: dict[str, list[float]] = {key: [] for key in LATENCY_TITLES}
    for run in runs:
        records = run.read_records()
        answered = filter_answered(records)
        for kind in LATENCY_KINDS:
            values[kind.key] += [value for record in answered if (value := kind.read_latency(record)) is not None]
        values["itl_s"] += collect_token_gaps_s(answered, run.read_token_times()).tolist()
        values["send_lag_s"] += collect_send_lags_s(records)
    return {key: build_curve(series) for key, series in values.items() if series}


def build_curve(values: Sequence[float]) -> dict[str, object]:
    """Return sorted values `x` at shares `q`: every value if there are few, else quantiles that are denser in the tail."""
    ordered = sorted(values)
    count = len(ordered)
    if count <= MAX_EXACT_VALUES:
        return {"n": count, "x": [round_short(value) for value in ordered], "q": None}
    indexes = sorted({min(count - 1, int(share * count)) for share in _quantile_shares()} | {count - 1})
    return {
        "n": count,
        "x": [round_short(ordered[index]) for index in indexes],
        "q": [round_short((index + 1) / count) for index in indexes],
    }


def _quantile_shares() -> list[float]:
    """Return half of the levels evenly spaced over 0 to 1, and half concentrated towards 1 for the tail percentiles."""
    half = QUANTILE_LEVELS // 2
    even = [step / half for step in range(half)]
    tail = [1 - (1 - step / half) ** 3 for step in range(half)]
    return even + tail


def round_short(value: float) -> float:
    """Round to five digits: more than a screen shows, at half the file size."""
    return float(f"{value:.5g}")
