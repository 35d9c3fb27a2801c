"""One run over time: tokens per second, requests in flight, power, and a sample of its requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from enginebay.lab.report.latency_curves import round_short
from enginebay.lab.store.run_reader import Run
from enginebay.lab.workload.request_records import Record
from enginebay.meters.sample import Sample

MAX_BINS = 240
EVENTS_PER_BIN = 10  # mean output events per bin: fewer would show the engine's steps, not its speed
MAX_READINGS = 500  # per device
MAX_WATERFALL_ROWS = 120


def build_timeline(run: Run) -> dict[str, Any]:
    """Return the data of one run's timeline and waterfall."""
    records, tokens = run.read_records(), run.read_token_times()
    end_s = _find_end_s(run, records)
    bins = max(20, min(MAX_BINS, sum(map(len, tokens.values())) // EVENTS_PER_BIN))
    return {
        "end": round_short(end_s),
        "tokens": [round_short(value) for value in bin_tokens_per_s(records, tokens, end_s, bins)],
        "inflight": [round_short(value) for value in bin_in_flight(records, end_s, bins)],
        "power": thin_power(run.read_samples(), end_s),
        "rows": build_waterfall(records),
        "requests": len(records),
    }


def _find_end_s(run: Run, records: Sequence[Record]) -> float:
    ends = [record.end_s for record in records if record.end_s is not None]
    window = run.manifest.get("window_s")
    known = float(window) if isinstance(window, int | float) else 0.0
    return max([known, *ends]) or 1.0


def bin_tokens_per_s(
    records: Sequence[Record], tokens: Mapping[int, Sequence[float]], end_s: float, count: int = MAX_BINS
) -> list[float]:
    """Return output tokens per second in each bin: the server's token count, spread over each request's output events."""
    width = end_s / count
    bins = [0.0] * count
    for record in records:
        times = tokens.get(record.index, ())
        if record.error is not None or not record.output_tokens or not times:
            continue
        share = record.output_tokens / len(times) / width
        for time_s in times:
            bins[min(count - 1, max(0, int(time_s / width)))] += share
    return bins


def bin_in_flight(records: Sequence[Record], end_s: float, count: int = MAX_BINS) -> list[float]:
    """Return the mean number of requests in flight in each bin."""
    width = end_s / count
    finished = [(record.sent_s, record.end_s) for record in records if record.end_s is not None]
    started = _ElapsedSum(sorted(sent for sent, _ in finished))
    ended = _ElapsedSum(sorted(end for _, end in finished))
    sums = [started.sum_at(edge * width) - ended.sum_at(edge * width) for edge in range(count + 1)]
    return [(late - early) / width for early, late in pairwise(sums)]


class _ElapsedSum:
    """Sum of the seconds elapsed since each of several moments."""

    def __init__(self, moments: Sequence[float]) -> None:
        self._moments = moments
        self._sums = [0.0, *accumulate(moments)]

    def sum_at(self, now: float) -> float:
        past = bisect_right(self._moments, now)
        return past * now - self._sums[past]


def thin_power(samples: Sequence[Sample], end_s: float) -> list[dict[str, Any]]:
    """Return watts of each device inside the window; long series are averaged in groups, which preserves the energy."""
    devices: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        if sample.power_w is not None and -1.0 <= sample.time_s <= end_s + 1.0:
            devices.setdefault(sample.device, []).append((sample.time_s, sample.power_w))
    return [{"device": name, **_thin_readings(readings)} for name, readings in devices.items()]


def _thin_readings(readings: Sequence[tuple[float, float]]) -> dict[str, Any]:
    size = -(-len(readings) // MAX_READINGS)
    groups = [readings[start : start + size] for start in range(0, len(readings), size)]
    return {
        "t": [round_short(sum(time for time, _ in group) / len(group)) for group in groups],
        "w": [round_short(sum(watts for _, watts in group) / len(group)) for group in groups],
        "each": size,
    }


def build_waterfall(records: Sequence[Record]) -> list[list[Any]]:
    """Return evenly picked requests in send order; failed ones take precedence."""
    failed = [record for record in records if record.error is not None]
    answered = [record for record in records if record.error is None]
    chosen = _pick_evenly(failed, MAX_WATERFALL_ROWS // 2)
    chosen += _pick_evenly(answered, MAX_WATERFALL_ROWS - len(chosen))
    return [_waterfall_row(record) for record in sorted(chosen, key=lambda record: (record.intended_s, record.index))]


def _pick_evenly(records: Sequence[Record], count: int) -> list[Record]:
    if len(records) <= count:
        return list(records)
    return [records[index * len(records) // count] for index in range(count)]


def _waterfall_row(record: Record) -> list[Any]:
    times = (record.intended_s, record.sent_s, record.first_s, record.last_s, record.end_s)
    # Fixed resolution of 10 µs, because readers take differences of these.
    shown = (None if time_s is None else round(time_s, 5) for time_s in times)
    return [record.index, *shown, record.output_tokens, record.error]
