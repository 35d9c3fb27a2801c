"""Check the coverage of the lab's confidence intervals, and its rate of false alarms.

    python -m bench.lab.interval_coverage
    python -m bench.lab.interval_coverage --studies 10000 --seed 7     more studies, another stream

Each study has 5 cycles of two engines, under several noise models (`simulated_studies.py`). The targets, over 2,000 studies of
each: the intervals of a mean, a difference, a ratio and a percentile contain the true value 93.5 to 96.5% of the time, and
two equal engines differ 3.5 to 6.5% of the time. How often a planted slowdown of 5% is detected depends on the noise and is
only reported.
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
_REQUESTS = 1000  # per percentile


@dataclass(frozen=True, slots=True)
class CoverageResult:
    """Shares of the studies under one noise model."""

    noise: str
    mean: float
    difference: float
    ratio: float
    alarms: float
    detected: float

    @property
    def is_within(self) -> bool:
        return all(_is_inside(share, COVERAGE) for share in (self.mean, self.difference, self.ratio)) and _is_inside(
            self.alarms, ALARMS
        )


def measure_coverage(
    noise: NoiseModel, studies: int = STUDIES, cycles: int = CYCLES, seed: int = SEED
) -> CoverageResult:
    """Evaluate every study with the lab's own functions: for equal engines, and for one made slower."""
    truth = noise.estimate_true_mean(seed)
    left, right = noise.runs(np.random.default_rng([seed, 0]), studies, cycles)
    mean = difference = ratio = alarms = detected = 0
    for a, b in zip(left.tolist(), right.tolist(), strict=True):
        slower = compare_pairs(a, [value * (1 + SLOWDOWN) for value in b])
        mean += mean_interval(a).contains(truth)
        difference += slower.difference.contains(SLOWDOWN * truth)
        ratio += slower.ratio is not None and slower.ratio.contains(1 + SLOWDOWN)
        detected += slower.differs
        alarms += compare_pairs(a, b).differs
    return CoverageResult(noise.name, *(count / studies for count in (mean, difference, ratio, alarms, detected)))


def measure_percentile_coverage(percent: float, studies: int = STUDIES, seed: int = SEED) -> float:
    """Return how often the interval of a percentile of independent requests contains the true value."""
    random = np.random.default_rng([seed, 2, round(percent)])
    values = random.exponential(1.0, (studies, _REQUESTS))
    truth = float(-np.log(1 - percent / 100))
    return sum(percentile_interval(row, percent).contains(truth) for row in values) / studies


def main(studies: int, seed: int) -> int:
    results = [measure_coverage(noise, studies, seed=seed) for noise in NOISE_MODELS]
    percentiles = {percent: measure_percentile_coverage(percent, studies, seed) for percent in PERCENTILES}
    print_coverage(results, percentiles, studies)
    met = all(result.is_within for result in results) and all(
        _is_inside(share, COVERAGE) for share in percentiles.values()
    )
    print(f"coverage {_format_range(COVERAGE)} and false alarms {_format_range(ALARMS)}: {'met' if met else 'MISSED'}")
    return 0 if met else 1


def print_coverage(results: Sequence[CoverageResult], percentiles: dict[float, float], studies: int) -> None:
    print(f"{studies} studies of {CYCLES} cycles per noise model; shares in %")
    print_table(
        [
            "noise model",
            "mean covered",
            "difference covered",
            "ratio covered",
            "false alarms",
            "5% detected",
            "targets",
        ],
        [[result.noise, *_format_cells(result), "met" if result.is_within else "MISSED"] for result in results],
    )
    for percent, share in percentiles.items():
        print(f"percentile {percent:g} of {_REQUESTS} requests covered: {share:.2%}")


def _format_cells(result: CoverageResult) -> list[str]:
    return [
        f"{100 * share:.2f}" for share in (result.mean, result.difference, result.ratio, result.alarms, result.detected)
    ]


def _is_inside(share: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= share <= limits[1]


def _format_range(limits: tuple[float, float]) -> str:
    return f"{100 * limits[0]:g} to {100 * limits[1]:g}%"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Coverage of the lab's confidence intervals in simulated studies.")
    options.add_argument("--studies", type=int, default=STUDIES)
    options.add_argument("--seed", type=int, default=SEED)
    arguments = options.parse_args()
    sys.exit(main(arguments.studies, arguments.seed))
