"""Latency values of a point as a cumulative curve short enough to embed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from enginebay.lab.measures.latencies import answered, e2e_s, gaps_s, send_lags_s, tpot_s, ttft_s
from enginebay.lab.requests import Record
from enginebay.lab.runs.reader import Run

EXACT = 1000  # up to so many values a curve has every one of them
LEVELS = 500  # quantiles of a longer one


@dataclass(frozen=True, slots=True)
class Latency:
    """One kind of latency, and how a request's record gives it."""

    key: str
    title: str
    of: Callable[[Record], float | None]


LATENCIES: tuple[Latency, ...] = (
    Latency("ttft_s", "Time to first token", ttft_s),
    Latency("tpot_s", "Time per output token", tpot_s),
    Latency("e2e_s", "End to end", e2e_s),
    Latency("ttft_from_intended_s", "Time to first token, from the intended send time", partial(ttft_s, intended=True)),
    Latency("e2e_from_intended_s", "End to end, from the intended send time", partial(e2e_s, intended=True)),
    Latency("queue_s", "Queue time, as the server says", lambda record: record.queue_s),
)
TITLES = {one.key: one.title for one in LATENCIES} | {
    "itl_s": "Inter-token latency",
    "send_lag_s": "Send lag of the load client",
}


def curves(runs: Sequence[Run]) -> dict[str, dict[str, object]]:
    """Every latency's curve over the answered requests of these runs; a latency nobody measured is not there."""
    values: dict[str, list[float]] = {key: [] for key in TITLES}
    for run in runs:
        records = run.records()
        whole = answered(records)
        for one in LATENCIES:
            values[one.key] += [value for record in whole if (value := one.of(record)) is not None]
        values["itl_s"] += gaps_s(whole, run.tokens()).tolist()
        values["send_lag_s"] += send_lags_s(records)
    return {key: curve(found) for key, found in values.items() if found}


def curve(values: Sequence[float]) -> dict[str, object]:
    """Sorted values `x` at shares `q`; every value while there are few, else quantiles that grow denser at the tail."""
    ordered = sorted(values)
    count = len(ordered)
    if count <= EXACT:
        return {"n": count, "x": [short(one) for one in ordered], "q": None}
    places = sorted({min(count - 1, int(share * count)) for share in _shares()} | {count - 1})
    return {
        "n": count,
        "x": [short(ordered[place]) for place in places],
        "q": [short((place + 1) / count) for place in places],
    }


def _shares() -> list[float]:
    """Half of the levels even over 0 to 1, half of them crowding towards 1, where p99 and its kin live."""
    half = LEVELS // 2
    even = [step / half for step in range(half)]
    tail = [1 - (1 - step / half) ** 3 for step in range(half)]
    return even + tail


def short(value: float) -> float:
    """Five digits: more than a screen can show, and half the size in the file."""
    return float(f"{value:.5g}")
