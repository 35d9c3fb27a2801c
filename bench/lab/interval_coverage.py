"""Do the lab's intervals hold the truth as often as they say, and do equal engines seldom seem to differ?

    python -m bench.lab.interval_coverage
    python -m bench.lab.interval_coverage --studies 10000 --seed 7     more studies, another stream

Each study has 5 cycles of two engines, in several worlds of noise (`worlds.py`). The bars, over 2,000 studies in each: the
interval of a mean, of a difference, of a ratio and of a percentile holds the truth 93.5 to 96.5% of the time, and two
equal engines seem to differ 3.5 to 6.5% of the time. How often a planted slowdown of 5% is found depends on the noise and is
only told.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.lab.simulated_studies import NOISE_MODELS, NoiseModel
from enginebay.cli.output.console import print_table
from enginebay.lab.statistics.confidence_intervals import mean_interval, percentile_interval
from enginebay.lab.statistics.paired_comparison import compare_pairs

STUDIES, CYCLES, SEED, SLOWDOWN = 2000, 5, 20260101, 0.05
COVERAGE, ALARMS = (0.935, 0.965), (0.035, 0.065)
PERCENTILES = (50.0, 90.0, 95.0)
_REQUESTS = 1000  # of which percentiles are taken


@dataclass(frozen=True, slots=True)
class CoverageResult:
    """Shares of the studies of one world."""

    world: str
    mean: float
    difference: float
    ratio: float
    alarms: float
    found: float

    @property
    def is_within(self) -> bool:
        return all(_is_inside(share, COVERAGE) for share in (self.mean, self.difference, self.ratio)) and _is_inside(
            self.alarms, ALARMS
        )


def measure_coverage(
    world: NoiseModel, studies: int = STUDIES, cycles: int = CYCLES, seed: int = SEED
) -> CoverageResult:
    """Every study of a world through the lab's own functions: equal engines, and one made slower."""
    truth = world.estimate_true_mean(seed)
    left, right = world.runs(np.random.default_rng([seed, 0]), studies, cycles)
    mean = difference = ratio = alarms = found = 0
    for a, b in zip(left.tolist(), right.tolist(), strict=True):
        slower = compare_pairs(a, [value * (1 + SLOWDOWN) for value in b])
        mean += mean_interval(a).contains(truth)
        difference += slower.difference.contains(SLOWDOWN * truth)
        ratio += slower.ratio is not None and slower.ratio.contains(1 + SLOWDOWN)
        found += slower.differs
        alarms += compare_pairs(a, b).differs
    return CoverageResult(world.name, *(count / studies for count in (mean, difference, ratio, alarms, found)))


def measure_percentile_coverage(percent: float, studies: int = STUDIES, seed: int = SEED) -> float:
    """How often the interval of a percentile of one run's independent requests holds it."""
    random = np.random.default_rng([seed, 2, round(percent)])
    values = random.exponential(1.0, (studies, _REQUESTS))
    truth = float(-np.log(1 - percent / 100))
    return sum(percentile_interval(row, percent).contains(truth) for row in values) / studies


def main(studies: int, seed: int) -> int:
    found = [measure_coverage(world, studies, seed=seed) for world in NOISE_MODELS]
    percentiles = {percent: measure_percentile_coverage(percent, studies, seed) for percent in PERCENTILES}
    print_coverage(found, percentiles, studies)
    good = all(one.is_within for one in found) and all(_is_inside(share, COVERAGE) for share in percentiles.values())
    print(f"coverage {_format_range(COVERAGE)} and false alarms {_format_range(ALARMS)}: {'met' if good else 'MISSED'}")
    return 0 if good else 1


def print_coverage(found: Sequence[CoverageResult], percentiles: dict[float, float], studies: int) -> None:
    print(f"{studies} studies of {CYCLES} cycles in each world; shares in %")
    print_table(
        ["world", "mean held", "difference held", "ratio held", "false alarms", "5% found", "bars"],
        [[one.world, *_format_cells(one), "met" if one.is_within else "MISSED"] for one in found],
    )
    for percent, share in percentiles.items():
        print(f"percentile {percent:g} of {_REQUESTS} requests held: {share:.2%}")


def _format_cells(one: CoverageResult) -> list[str]:
    return [f"{100 * share:.2f}" for share in (one.mean, one.difference, one.ratio, one.alarms, one.found)]


def _is_inside(share: float, bar: tuple[float, float]) -> bool:
    return bar[0] <= share <= bar[1]


def _format_range(bar: tuple[float, float]) -> str:
    return f"{100 * bar[0]:g} to {100 * bar[1]:g}%"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="How often the lab's intervals hold the truth, in simulated studies.")
    options.add_argument("--studies", type=int, default=STUDIES)
    options.add_argument("--seed", type=int, default=SEED)
    given = options.parse_args()
    sys.exit(main(given.studies, given.seed))
