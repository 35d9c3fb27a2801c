"""Whether two engines differ, from runs paired by cycle on the same seeded arrivals. Pure.

The decision is the paired t test at 5%: they differ where the 95% interval of the difference leaves out 0, and there are
at least three pairs: two that happen to be alike have an interval of next to no width. How many more
runs would settle it is reckoned from the difference and the spread seen so far, so it is a plan and no promise; and
looking again with the added runs makes 5% of false alarms some 7%, more with every further look. Add them all, then look
once; what must stand is a new study of that many cycles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scipy import special

from enginebay.lab.statistics.confidence_intervals import (
    CONFIDENCE,
    ConfidenceInterval,
    difference_interval,
    pair_differences,
    ratio_interval,
    sample_deviation,
    t_quantile,
)
from enginebay.lab.validity.limits import MIN_CYCLES

WANTED_POWER = 0.8
MAX_PAIRS = 10_000  # beyond this nobody would run them


def compute_power(effect: float, pairs: int, confidence: float = CONFIDENCE) -> float:
    """How often so many pairs find a difference of `effect` standard deviations of the pairs' difference."""
    degrees, centre = pairs - 1, abs(effect) * math.sqrt(pairs)
    limit = t_quantile(confidence, degrees)
    above = 1 - float(special.nctdtr(degrees, centre, limit))
    return above + float(special.nctdtr(degrees, centre, -limit))


def count_pairs_needed(effect: float, wanted: float = WANTED_POWER, confidence: float = CONFIDENCE) -> int | None:
    """The fewest pairs that find it with the wanted power; None where that is over MOST_PAIRS."""
    if effect == 0 or _approximate_pairs(effect, wanted, confidence) > MAX_PAIRS:
        return None
    low, high = 1, 2
    while compute_power(effect, high, confidence) < wanted:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if compute_power(effect, middle, confidence) >= wanted else (middle, high)
    return high


def _approximate_pairs(effect: float, wanted: float, confidence: float) -> float:
    """As if the spread were known: never more than are really needed."""
    return float((special.ndtri((1 + confidence) / 2) + special.ndtri(wanted)) / effect) ** 2


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Of b against a."""

    a: float  # means over the pairs
    b: float
    difference: ConfidenceInterval  # of b - a
    ratio: ConfidenceInterval | None  # of b / a; None where the mean of a is 0
    differs: bool
    more_runs: int | None  # more pairs that would settle a difference of this size; None: settled, or cannot be told
    outlook: str  # the same in words


def compare_pairs(a: Sequence[float], b: Sequence[float]) -> PairedComparison:
    """One figure of two engines: a[i] and b[i] are of the same cycle."""
    difference = difference_interval(a, b)
    differs = len(a) >= MIN_CYCLES and not difference.contains(0.0)
    more = None if differs else _estimate_more_runs(a, b)
    ratio, outlook = ratio_interval(a, b), _describe_outlook(difference, differs, more)
    return PairedComparison(math.fsum(a) / len(a), math.fsum(b) / len(b), difference, ratio, differs, more, outlook)


def pair_by_cycle(a: Mapping[int, _Value], b: Mapping[int, _Value]) -> tuple[list[_Value], list[_Value]]:
    """What both have, in the order of cycles: a cycle that one of them lacks pairs with nothing."""
    cycles = sorted(a.keys() & b.keys())
    return [a[cycle] for cycle in cycles], [b[cycle] for cycle in cycles]


def _estimate_more_runs(a: Sequence[float], b: Sequence[float]) -> int | None:
    gaps = pair_differences(a, b)
    if len(gaps) < 2:
        return None
    spread, mean = sample_deviation(gaps), math.fsum(gaps) / len(gaps)
    if spread == 0 or mean == 0:
        return None
    wanted = count_pairs_needed(mean / spread)
    return None if wanted is None else max(1, wanted - len(gaps))


def _describe_outlook(difference: ConfidenceInterval, differs: bool, more: int | None) -> str:
    if differs:
        return "settled: they differ"
    if difference.low is None:
        return f"one pair does not tell how much runs spread: at least {MIN_CYCLES} are needed, 5 are better"
    if not difference.contains(0.0):
        return f"not settled: {difference.count} pairs are too few to settle it, at least {MIN_CYCLES} are needed"
    if more is not None:
        runs = "1 more run of each" if more == 1 else f"{more} more runs of each"
        return f"not settled: {runs} would settle a difference of this size, {WANTED_POWER:.0%} of the time"
    if difference.estimate == 0:
        return "no difference was seen"
    return f"not settled: the difference is so small that more than {MAX_PAIRS} runs would be needed"
