"""Samples of a device with a known power trace."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from enginebay.meters.sample import Sample
from tests.unit.meters.replay_meter import PowerTrace, ReplayMeter

GPU = "gpu:0"
SERVING = PowerTrace(((0.0, 100.0), (5.03, 600.0), (6.52, 350.0), (65.57, 100.0)))  # idle, prefill, decode, idle


class ManualClock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def play_trace(trace: PowerTrace, times: Iterable[float], **settings: Any) -> list[Sample]:
    """Return a meter's samples of this trace at these times."""
    clock = ManualClock()
    meter = ReplayMeter(trace, clock=clock, **settings)
    samples = []
    for clock.now_s in times:
        samples += meter.read()
    return samples


def make_sample_times(
    end_s: float, interval_s: float = 0.1, bursts: Sequence[float] = (), seed: int = 1
) -> list[float]:
    """Return a sampler's reading times: every interval with jitter, and much more often in bursts."""
    chance = random.Random(seed)
    regular = [n * interval_s + chance.uniform(0, 0.1) * interval_s for n in range(int(end_s / interval_s) + 1)]
    fast = [burst + n * 0.005 + chance.uniform(0, 0.001) for burst in bursts for n in range(100)]
    return sorted({0.0, *regular, *fast, end_s})
