"""Latency values of a point as a cumulative curve short enough to embed."""

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

MAX_EXACT_VALUES = 1000  # up to so many values a curve has every one of them
QUANTILE_LEVELS = 500  # quantiles of a longer one


@dataclass(frozen=True, slots=True)
class LatencyKind:
    """One kind of latency, and how a request's record gives it."""

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
    LatencyKind("queue_s", "Queue time, as the server says", lambda record: record.queue_s),
)
LATENCY_TITLES = {one.key: one.title for one in LATENCY_KINDS} | {
    "itl_s": "Inter-token latency",
    "send_lag_s": "Send lag of the load client",
}


def build_curves(runs: Sequence[Run]) -> dict[str, dict[str, object]]:
    """Every latency's curve over the answered requests of these runs; a latency nobody measured is not there."""
    values: dict[str, list[float]] = {key: [] for key in LATENCY_TITLES}
    for run in runs:
        records = run.read_records()
        whole = filter_answered(records)
        for one in LATENCY_KINDS:
            values[one.key] += [value for record in whole if (value := one.read_latency(record)) is not None]
        values["itl_s"] += collect_token_gaps_s(whole, run.read_token_times()).tolist()
        values["send_lag_s"] += collect_send_lags_s(records)
    return {key: build_curve(found) for key, found in values.items() if found}


def build_curve(values: Sequence[float]) -> dict[str, object]:
    """Sorted values `x` at shares `q`; every value while there are few, else quantiles that grow denser at the tail."""
    ordered = sorted(values)
    count = len(ordered)
    if count <= MAX_EXACT_VALUES:
        return {"n": count, "x": [round_short(one) for one in ordered], "q": None}
    places = sorted({min(count - 1, int(share * count)) for share in _quantile_shares()} | {count - 1})
    return {
        "n": count,
        "x": [round_short(ordered[place]) for place in places],
        "q": [round_short((place + 1) / count) for place in places],
    }


def _quantile_shares() -> list[float]:
    """Half of the levels even over 0 to 1, half of them crowding towards 1, where p99 and its kin live."""
    half = QUANTILE_LEVELS // 2
    even = [step / half for step in range(half)]
    tail = [1 - (1 - step / half) ** 3 for step in range(half)]
    return even + tail


def round_short(value: float) -> float:
    """Five digits: more than a screen can show, and half the size in the file."""
    return float(f"{value:.5g}")
