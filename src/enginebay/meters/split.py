"""A window's energy told apart by what the engine was doing: prefill, decode, idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from enginebay.meters.energy import Track, measure_track, track
from enginebay.meters.problem import COUNTER, Problem
from enginebay.meters.sample import Sample
from enginebay.meters.series import CLOCK_S, median

UNTOLD = 0.1  # this share of the time may be in stretches too short to be told apart
_LEAST_STEPS = 2  # a stretch must last this many updates of what it is measured by


@dataclass(frozen=True, slots=True)
class Interval:
    """[start, end) with what was done in it. Intervals do not overlap."""

    start_s: float
    end_s: float
    label: str


@dataclass(frozen=True, slots=True)
class Split:
    """Joules by label; empty where they cannot be told apart, and then the problems say why."""

    joules: dict[str, float]
    seconds: dict[str, float]
    source: str
    untold: float  # share of the time in stretches too short for the meter
    problems: tuple[Problem, ...] = ()


def split(samples: Sequence[Sample], device: str, intervals: Sequence[Interval]) -> Split:
    """The energy of each label's intervals. One after another with the same label they count as one stretch."""
    stretches = join(intervals)
    seconds: dict[str, float] = defaultdict(float)
    for stretch in stretches:
        seconds[stretch.label] += stretch.end_s - stretch.start_s
    if not stretches:
        return Split({}, {}, "", 0.0, (Problem("window_short", "there are no intervals to tell apart"),))
    one = track(samples, device)
    whole = measure_track(one, stretches[0].start_s, stretches[-1].end_s)
    if whole.total_j is None:
        return Split({}, dict(seconds), "", 1.0, whole.problems)
    step_s = _step_s(one, whole.source)
    untold = _untold(stretches, step_s)
    if len(seconds) > 1 and untold > UNTOLD:
        message = f"{untold:.0%} of the time is in phases shorter than {_LEAST_STEPS * step_s * 1e3:.0f} ms"
        return Split({}, dict(seconds), whole.source, untold, (*whole.problems, Problem("unresolved", message)))
    return Split(_joules(one, stretches, whole.source), dict(seconds), whole.source, untold, whole.problems)


def join(intervals: Sequence[Interval]) -> list[Interval]:
    """Intervals in order of time, neighbours with the same label made one; those that overlap are refused."""
    joined: list[Interval] = []
    for interval in sorted((i for i in intervals if i.end_s > i.start_s), key=lambda i: i.start_s):
        last = joined[-1] if joined else None
        if last is not None and interval.start_s < last.end_s - CLOCK_S:
            raise ValueError(f"intervals overlap at {interval.start_s}")
        if last is not None and last.label == interval.label and interval.start_s <= last.end_s + CLOCK_S:
            joined[-1] = Interval(last.start_s, interval.end_s, last.label)
        else:
            joined.append(interval)
    return joined


def _joules(one: Track, stretches: Sequence[Interval], source: str) -> dict[str, float]:
    joules: dict[str, float] = defaultdict(float)
    read = one.counter_j if source == COUNTER else one.power_j
    for stretch in stretches:
        joules[stretch.label] += read(stretch.start_s, stretch.end_s) or 0.0
    return dict(joules)


def _step_s(one: Track, source: str) -> float:
    """How far apart two independent readings of the source are: by its updates, and by how often it was read."""
    times = one.counter_times if source == COUNTER else one.power_times
    between = [b - a for a, b in pairwise(times)]
    read_s = median(between) if between else 0.0
    period_s = one.counter.period.longest_s if source == COUNTER and one.counter else None
    return max(read_s, period_s or 0.0)


def _untold(stretches: Sequence[Interval], step_s: float) -> float:
    lengths = [stretch.end_s - stretch.start_s for stretch in stretches]
    return sum(length for length in lengths if length < _LEAST_STEPS * step_s) / sum(lengths)
