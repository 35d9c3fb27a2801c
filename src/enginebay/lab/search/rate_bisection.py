"""Bisect for the highest rate at which an engine meets an objective: what to try next, and the result. Pure.

A trial is one open-loop run at one rate. Rates rise or fall by a factor until one meets the objective and one misses it;
then the geometric mean of the two is tried, until they are within the resolution. The highest rate that met the objective
is then confirmed by a longer run with new prompts and arrivals: it counts only if it meets the objective again. A miss
holds for every rate above it, so luck at one rate cannot carry the search upwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.errors import ConfigError

FINEST_RESOLUTION, COARSEST_RESOLUTION = 0.02, 1.0


@dataclass(frozen=True, slots=True)
class SearchRules:
    """How precise the search is, and how many runs it may make."""

    resolution: float = 0.10  # largest gap between the highest rate met and the lowest missed
    most_runs: int = 12  # trials per engine
    growth: float = 1.5  # factor between trials, until both sides are known

    def __post_init__(self) -> None:
        if not FINEST_RESOLUTION <= self.resolution <= COARSEST_RESOLUTION:
            raise ConfigError(
                f"resolution {self.resolution:g} is not between {FINEST_RESOLUTION:g} and {COARSEST_RESOLUTION:g}",
                "0.1 finds the rate within 10%",
                param="resolution",
            )
        if self.most_runs < 2:
            raise ConfigError("a search needs at least 2 runs", "one to find a rate, one to confirm it", param="runs")


@dataclass(frozen=True, slots=True)
class RateBounds:
    """Where the search starts, and its range. `limit`: why no rate above `highest` is tried."""

    start: float
    lowest: float
    highest: float = math.inf
    limit: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one run."""

    rate: float
    met: bool
    doubtful: bool = False  # something other than the load may have spoiled the run
    confirming: bool = False


@dataclass(frozen=True, slots=True)
class NextTrial:
    """The rate to run next."""

    rate: float
    confirming: bool = False


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of the search."""

    rate: float | None  # the highest that met the objective
    above: float | None  # the lowest that missed it
    confirmed: bool = False
    narrow: bool = False  # the two are within the resolution, or no higher rate may be tried
    limit: str = ""  # why no higher rate was tried


def plan_next_trial(trials: Sequence[Trial], bounds: RateBounds, rules: SearchRules) -> NextTrial | SearchResult:
    """Return the next trial, or the result of these trials."""
    remaining = rules.most_runs - len(trials)
    if not trials:
        return NextTrial(_round_rate(min(bounds.start, bounds.highest)))
    counted = _drop_repeated_misses(trials)
    low, above = find_bracket(counted)
    must_confirm = remaining == 1 and low is not None and not trials[-1].confirming
    if remaining > 0 and not must_confirm and _should_repeat(trials):
        return NextTrial(trials[-1].rate, trials[-1].confirming)
    if low is None:
        below = _lower_rate(counted, above or bounds.start, bounds, rules)
        return NextTrial(below) if remaining > 0 and below is not None else SearchResult(None, above)
    at_top = above is None and low >= bounds.highest
    narrow = at_top or (above is not None and above / low <= 1 + rules.resolution)
    confirmed = any(trial.confirming and trial.met and trial.rate == low for trial in counted)
    if confirmed or remaining <= 0:
        return SearchResult(low, above, confirmed, narrow, bounds.limit if at_top else "")
    if narrow or remaining == 1:
        return NextTrial(low, confirming=True)
    if above is None:
        return NextTrial(min(_round_rate(low * rules.growth), bounds.highest))
    return NextTrial(_round_rate(math.sqrt(low * above)))


def find_bracket(trials: Sequence[Trial]) -> tuple[float | None, float | None]:
    """Return the highest rate that met the objective below every miss, and the lowest miss."""
    above = min((trial.rate for trial in trials if not trial.met), default=None)
    met = [trial.rate for trial in trials if trial.met and (above is None or trial.rate < above)]
    return max(met, default=None), above


def _drop_repeated_misses(trials: Sequence[Trial]) -> list[Trial]:
    """Drop the doubtful misses whose rate was tried again later."""
    return [
        trial
        for index, trial in enumerate(trials)
        if trial.met or not trial.doubtful or all(later.rate != trial.rate for later in trials[index + 1 :])
    ]


def _should_repeat(trials: Sequence[Trial]) -> bool:
    """Return whether to repeat the last trial: a doubtful miss is repeated once."""
    last = trials[-1]
    return last.doubtful and not last.met and sum(trial.rate == last.rate and not trial.met for trial in trials) == 1


def _lower_rate(trials: Sequence[Trial], above: float, bounds: RateBounds, rules: SearchRules) -> float | None:
    """Return a lower rate to try. None: there is none left. Steps grow with each miss, since low rates take longest."""
    if any(trial.met for trial in trials):  # met once and missed once: the edge is near
        rate = above / (1 + rules.resolution)
    else:
        rate = above / rules.growth ** len({trial.rate for trial in trials})
    if rate >= bounds.lowest:
        return _round_rate(rate)
    lowest = _round_rate(bounds.lowest)
    return lowest if above > lowest * (1 + rules.resolution) else None


def _round_rate(rate: float) -> float:
    """Round to three digits, so that the printed rate is the one that ran."""
    return float(f"{rate:.3g}")
