"""The search for the highest rate at which an engine keeps an objective: what to try next, and what was found. Pure.

A try is one open-loop run at one rate. From the first try on, rates rise or fall by a factor until one is kept and one
is missed; then the middle between them on a logarithmic scale is tried, until the two are as near as the resolution.
The highest rate that was kept is then run once more, longer and with other prompts and arrivals: it counts only when it
is kept again. A miss is believed for every rate above it, so luck at one rate cannot carry the search upwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.errors import ConfigError

FINEST_RESOLUTION, COARSEST_RESOLUTION = 0.02, 1.0


@dataclass(frozen=True, slots=True)
class SearchRules:
    """How exact the search is, and how long it may take."""

    resolution: float = 0.10  # the rate that is missed is at most so much above the one that is found
    most_runs: int = 12  # tries of one engine
    growth: float = 1.5  # between tries, while nothing is known on one side

    def __post_init__(self) -> None:
        if not FINEST_RESOLUTION <= self.resolution <= COARSEST_RESOLUTION:
            raise ConfigError(
                f"a resolution of {self.resolution:g} is not between {FINEST_RESOLUTION:g} and {COARSEST_RESOLUTION:g}",
                "0.1 finds the rate to 10%",
                param="resolution",
            )
        if self.most_runs < 2:
            raise ConfigError("a search needs 2 runs at least", "one to find a rate, one to confirm it", param="runs")


@dataclass(frozen=True, slots=True)
class RateBounds:
    """Where the search begins and what it never leaves. `limit`: what stands behind `highest`, in words."""

    start: float
    lowest: float
    highest: float = math.inf
    limit: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one run."""

    rate: float
    met: bool
    doubtful: bool = False  # something other than the load may have spoiled it
    confirming: bool = False


@dataclass(frozen=True, slots=True)
class NextTrial:
    """Run this rate next."""

    rate: float
    confirming: bool = False


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What the search gave."""

    rate: float | None  # the highest that was kept; None: none was
    above: float | None  # the lowest that was missed; None: none was
    confirmed: bool = False
    narrow: bool = False  # the two are as near as the resolution, or nothing above could be tried
    limit: str = ""  # why nothing above was tried


def plan_next_trial(trials: Sequence[Trial], bounds: RateBounds, rules: SearchRules) -> NextTrial | SearchResult:
    """What to run after these tries, or what they say."""
    left = rules.most_runs - len(trials)
    if not trials:
        return NextTrial(_round_rate(min(bounds.start, bounds.highest)))
    counted = _drop_repeated_misses(trials)
    low, above = find_bracket(counted)
    last_to_confirm = left == 1 and low is not None and not trials[-1].confirming
    if left > 0 and not last_to_confirm and _should_repeat(trials):
        return NextTrial(trials[-1].rate, trials[-1].confirming)
    if low is None:
        below = _lower_rate(counted, above or bounds.start, bounds, rules)
        return NextTrial(below) if left > 0 and below is not None else SearchResult(None, above)
    top = above is None and low >= bounds.highest
    narrow = top or (above is not None and above / low <= 1 + rules.resolution)
    confirmed = any(one.confirming and one.met and one.rate == low for one in counted)
    if confirmed or left <= 0:
        return SearchResult(low, above, confirmed, narrow, bounds.limit if top else "")
    if narrow or left == 1:
        return NextTrial(low, confirming=True)
    if above is None:
        return NextTrial(min(_round_rate(low * rules.growth), bounds.highest))
    return NextTrial(_round_rate(math.sqrt(low * above)))


def find_bracket(trials: Sequence[Trial]) -> tuple[float | None, float | None]:
    """The highest rate that was kept below every miss, and the lowest miss."""
    above = min((one.rate for one in trials if not one.met), default=None)
    kept = [one.rate for one in trials if one.met and (above is None or one.rate < above)]
    return max(kept, default=None), above


def _drop_repeated_misses(trials: Sequence[Trial]) -> list[Trial]:
    """Without the doubtful misses whose rate was tried again afterwards."""
    return [
        one
        for place, one in enumerate(trials)
        if one.met or not one.doubtful or all(later.rate != one.rate for later in trials[place + 1 :])
    ]


def _should_repeat(trials: Sequence[Trial]) -> bool:
    """A miss that something else may have caused is tried once more; a rate that is kept all the same is kept."""
    last = trials[-1]
    return last.doubtful and not last.met and sum(one.rate == last.rate and not one.met for one in trials) == 1


def _lower_rate(trials: Sequence[Trial], above: float, bounds: RateBounds, rules: SearchRules) -> float | None:
    """A lower rate to try; None: there is none left. Steps grow with every miss, since low rates take the longest."""
    if any(one.met for one in trials):  # kept once and missed once: it is near
        wanted = above / (1 + rules.resolution)
    else:
        wanted = above / rules.growth ** len({one.rate for one in trials})
    if wanted >= bounds.lowest:
        return _round_rate(wanted)
    lowest = _round_rate(bounds.lowest)
    return lowest if above > lowest * (1 + rules.resolution) else None


def _round_rate(rate: float) -> float:
    """Three digits, so that what is printed is what was run."""
    return float(f"{rate:.3g}")
