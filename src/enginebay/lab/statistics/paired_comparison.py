"""Whether two engines differ, from runs paired by cycle on the same seeded arrivals. Pure.

The decision is the paired t test at 5%: engines differ if the 95% interval of the difference excludes 0 and there are at
least three pairs (two similar pairs have an interval of almost no width). The number of further runs is an estimate from
the difference and spread so far, not a guarantee. Testing again after adding runs raises the false-positive rate from 5%
to about 7%, more with every further test: add all runs first, then test once. To confirm a result, run a new study with
that many cycles.
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

TARGET_POWER = 0.8
MAX_PAIRS = 10_000  # more is not practical


def compute_power(effect: float, pairs: int, confidence: float = CONFIDENCE) -> float:
    """Return the power of a paired test at `effect` standard deviations of the pairs' difference."""
    degrees, centre = pairs - 1, abs(effect) * math.sqrt(pairs)
    limit = t_quantile(confidence, degrees)
    above = 1 - float(special.nctdtr(degrees, centre, limit))
    return above + float(special.nctdtr(degrees, centre, -limit))


def count_pairs_needed(effect: float, power: float = TARGET_POWER, confidence: float = CONFIDENCE) -> int | None:
    """Return the fewest pairs that reach this power; None if that exceeds MAX_PAIRS."""
    if effect == 0 or _approximate_pairs(effect, power, confidence) > MAX_PAIRS:
        return None
    low, high = 1, 2
    while compute_power(effect, high, confidence) < power:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if compute_power(effect, middle, confidence) >= power else (middle, high)
    return high


def _approximate_pairs(effect: float, power: float, confidence: float) -> float:
    """Return a lower bound on the pairs needed, assuming a known spread."""
    return float((special.ndtri((1 + confidence) / 2) + special.ndtri(power)) / effect) ** 2


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Comparison of b against a."""

    a: float  # means over the pairs
    b: float
    difference: ConfidenceInterval  # of b - a
    ratio: ConfidenceInterval | None  # of b / a; None if the mean of a is 0
    differs: bool
    more_runs: (
        int | None
    )  # further pairs that would resolve a difference of this size; None: significant already, or unknown
    outlook: str  # the same in words


def compare_pairs(a: Sequence[float], b: Sequence[float]) -> PairedComparison:
    """Compare one figure of two engines; a[i] and b[i] are from the same cycle."""
    difference = difference_interval(a, b)
    differs = len(a) >= MIN_CYCLES and not difference.contains(0.0)
    more = None if differs else _estimate_more_runs(a, b)
    ratio, outlook = ratio_interval(a, b), _describe_outlook(difference, differs, more)
    return PairedComparison(math.fsum(a) / len(a), math.fsum(b) / len(b), difference, ratio, differs, more, outlook)


def pair_by_cycle(a: Mapping[int, _Value], b: Mapping[int, _Value]) -> tuple[list[_Value], list[_Value]]:
    """Return the values of the cycles that both have, in cycle order."""
    cycles = sorted(a.keys() & b.keys())
    return [a[cycle] for cycle in cycles], [b[cycle] for cycle in cycles]


def _estimate_more_runs(a: Sequence[float], b: Sequence[float]) -> int | None:
    gaps = pair_differences(a, b)
    if len(gaps) < 2:
        return None
    spread, mean = sample_deviation(gaps), math.fsum(gaps) / len(gaps)
    if spread == 0 or mean == 0:
        return None
    needed = count_pairs_needed(mean / spread)
    return None if needed is None else max(1, needed - len(gaps))


def _describe_outlook(difference: ConfidenceInterval, differs: bool, more: int | None) -> str:
    if differs:
        return "significant difference"
    if difference.low is None:
        return f"inconclusive: one pair has no interval; at least {MIN_CYCLES} are needed, 5 are better"
    if not difference.contains(0.0):
        return f"inconclusive: {difference.count} pairs are too few, at least {MIN_CYCLES} are needed"
    if more is not None:
        runs = "1 more run of each" if more == 1 else f"{more} more runs of each"
        return f"inconclusive: {runs} would resolve a difference of this size ({TARGET_POWER:.0%} power)"
    if difference.estimate == 0:
        return "no difference"
    return f"inconclusive: the difference is so small that it needs more than {MAX_PAIRS} runs"
