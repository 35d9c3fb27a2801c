"""How many pairs of runs a paired t test needs. Pure."""

from __future__ import annotations

import math

from scipy import special

from enginebay.lab.statistics.intervals import CONFIDENCE, t_quantile

POWER = 0.8
MOST_PAIRS = 10_000  # beyond this nobody would run them


def power(effect: float, pairs: int, confidence: float = CONFIDENCE) -> float:
    """How often so many pairs find a difference of `effect` standard deviations of the pairs' difference."""
    degrees, centre = pairs - 1, abs(effect) * math.sqrt(pairs)
    limit = t_quantile(confidence, degrees)
    above = 1 - float(special.nctdtr(degrees, centre, limit))
    return above + float(special.nctdtr(degrees, centre, -limit))


def pairs_needed(effect: float, wanted: float = POWER, confidence: float = CONFIDENCE) -> int | None:
    """The fewest pairs that find it with the wanted power; None where that is over MOST_PAIRS."""
    if effect == 0 or _normal_pairs(effect, wanted, confidence) > MOST_PAIRS:
        return None
    low, high = 1, 2
    while power(effect, high, confidence) < wanted:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(effect, middle, confidence) >= wanted else (middle, high)
    return high


def _normal_pairs(effect: float, wanted: float, confidence: float) -> float:
    """As if the spread were known: never more than are really needed."""
    return float((special.ndtri((1 + confidence) / 2) + special.ndtri(wanted)) / effect) ** 2
