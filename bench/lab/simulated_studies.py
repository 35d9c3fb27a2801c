"""Simulated studies with a known true value: a figure of two equal engines, in interleaved runs over cycles.

The host's speed varies from cycle to cycle, alike for both engines, and each run has its own noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

HOST_SPREAD = 0.02  # from cycle to cycle, common to both engines
_REQUESTS = 300  # in a simulated run
_TRUTH_RUNS = 60_000

# (generator, studies, cycles) -> figures [study, cycle] of both engines
RunSimulator = Callable[[Any, int, int], tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class NoiseModel:
    """`truth`: the long-run mean; None: estimate it from very many runs."""

    name: str
    runs: RunSimulator
    truth: float | None = None

    def estimate_true_mean(self, seed: int) -> float:
        if self.truth is not None:
            return self.truth
        # A different random stream than the studies', so that the estimate is independent of their noise.
        figures, _ = self.runs(np.random.default_rng([seed, 1]), _TRUTH_RUNS // 5, 5)
        return float(figures.mean())


def _draw_host(random: Any, studies: int, cycles: int) -> Any:
    return 1 + HOST_SPREAD * random.standard_normal((studies, cycles))


def _draw_normal(random: Any, studies: int, cycles: int) -> tuple[Any, Any]:
    host = _draw_host(random, studies, cycles)
    a, b = 1 + 0.015 * random.standard_normal((2, studies, cycles))
    return host * a, host * b


def _draw_lognormal(random: Any, studies: int, cycles: int) -> tuple[Any, Any]:
    """Skewness 0.46: occasionally a run is much slower."""
    sigma = 0.15
    a, b = np.exp(sigma * random.standard_normal((2, studies, cycles)) - sigma**2 / 2)
    host = _draw_host(random, studies, cycles)
    return host * a, host * b


def _draw_gamma(random: Any, studies: int, cycles: int) -> tuple[Any, Any]:
    """A floor plus a skewed delay (skewness 0.63)."""
    a, b = 0.9 + 0.1 * random.gamma(10.0, 1 / 10.0, (2, studies, cycles))
    host = _draw_host(random, studies, cycles)
    return host * a, host * b


def _draw_latencies(random: Any, studies: int, cycles: int) -> Any:
    """Return latencies of one engine's runs: [study, cycle, request]."""
    return np.exp(0.6 * random.standard_normal((studies, cycles, _REQUESTS), dtype=np.float32))


def _draw_mean_latency(random: Any, studies: int, cycles: int) -> tuple[Any, Any]:
    host = _draw_host(random, studies, cycles)
    a, b = (_draw_latencies(random, studies, cycles).mean(axis=2) for _ in "ab")
    return host * a, host * b


def _draw_p95_latency(random: Any, studies: int, cycles: int) -> tuple[Any, Any]:
    host = _draw_host(random, studies, cycles)
    a, b = (np.percentile(_draw_latencies(random, studies, cycles), 95, axis=2) for _ in "ab")
    return host * a, host * b


def _simulate_queue(random: Any, studies: int, cycles: int) -> tuple[Any, Any]:
    """Mean end-to-end latency behind one queue at 50% load. Both engines see the same arrivals, as equal seeds give them."""
    shape = (studies, cycles)
    host = _draw_host(random, studies, cycles)
    waits, totals = [np.zeros(shape), np.zeros(shape)], [np.zeros(shape), np.zeros(shape)]
    for _ in range(_REQUESTS):
        gap = random.exponential(2.0, shape)
        for engine in (0, 1):
            service = host * random.gamma(4.0, 1 / 4.0, shape)
            totals[engine] += waits[engine] + service
            waits[engine] = np.maximum(0.0, waits[engine] + service - gap)
    return totals[0] / _REQUESTS, totals[1] / _REQUESTS


def _draw_throughput(random: Any, studies: int, cycles: int) -> tuple[Any, Any]:
    """Tokens/s of a fixed amount of work: the inverse of a time."""
    a, b = _draw_gamma(random, studies, cycles)
    return 1000 / a, 1000 / b


NOISE_MODELS = (
    NoiseModel("normal", _draw_normal, 1.0),
    NoiseModel("skewed, lognormal", _draw_lognormal, 1.0),
    NoiseModel("skewed, above a floor", _draw_gamma, 1.0),
    NoiseModel("mean of 300 latencies", _draw_mean_latency),
    NoiseModel("p95 of 300 latencies", _draw_p95_latency),
    NoiseModel("mean behind a queue", _simulate_queue),
    NoiseModel("throughput", _draw_throughput),
)
