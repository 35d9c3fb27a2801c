"""The sampling thread."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from enginebay.meters.analysis.window_energy import measure_energy
from enginebay.meters.meter_sampler import MeterSampler, _compute_next_due
from enginebay.meters.sample import Meter, Sample
from tests.unit.meters.replay_meter import PowerTrace, ReplayMeter

STEADY = PowerTrace(((0.0, 200.0),))


class Plain:
    """A meter without an energy counter."""

    name = "plain"

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> list[Sample]:
        self.reads += 1
        return [Sample(time.monotonic(), "host", utilisation=0.5)]

    def close(self) -> None:
        pass


class Broken(Plain):
    name = "broken"

    def read(self) -> list[Sample]:
        raise OSError("gone")


def started(*meters: Meter, interval_s: float = 0.02, burst_s: float = 0.1) -> MeterSampler:
    sampler = MeterSampler(meters, interval_s, burst_s=burst_s, burst_interval_s=0.002)
    sampler.start()
    return sampler


def wait_for_reads(meter: Plain, count: int) -> None:
    deadline_s = time.monotonic() + 30
    while meter.reads < count and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert meter.reads >= count


def test_a_window_inside_is_covered_and_gives_its_joules() -> None:
    sampler = MeterSampler([ReplayMeter(STEADY, period_s=0.01)], 0.02, burst_s=0.1)
    sampler.start()
    start_s = time.monotonic()
    time.sleep(0.5)
    end_s = time.monotonic()
    samples = sampler.stop()
    assert samples[0].time_s <= start_s
    assert samples[-1].time_s >= end_s + 0.1, "the last burst comes after the window"
    assert measure_energy(samples, "gpu:0", start_s, end_s).total_j == pytest.approx(200 * (end_s - start_s), rel=0.05)


def test_bursts_are_for_meters_that_count_energy() -> None:
    plain = Plain()
    sampler = started(ReplayMeter(STEADY), plain, interval_s=0.2, burst_s=0.3)
    wait_for_reads(plain, 3)
    counted = [sample for sample in sampler.stop() if sample.device == "gpu:0"]
    assert len(counted) > 2 * plain.reads


def test_without_counters_stopping_does_not_wait_for_a_burst() -> None:
    sampler = started(Plain(), burst_s=30.0)
    before_s = time.monotonic()
    sampler.stop()
    assert time.monotonic() - before_s < 20.0


def test_a_meter_that_fails_does_not_end_the_others_record() -> None:
    plain = Plain()
    sampler = started(Broken(), plain)
    wait_for_reads(plain, 3)
    assert sampler.stop()
    assert sampler.failures() == {"broken": "OSError: gone"}


def test_samples_are_handed_out_once() -> None:
    plain = Plain()
    sampler = started(plain)
    wait_for_reads(plain, 3)
    first = sampler.drain()
    assert sampler.latest()["host"].time_s >= first[-1].time_s
    rest = sampler.stop()
    every = [sample.time_s for sample in [*first, *rest]]
    assert first and rest
    assert all(b > a for a, b in pairwise(every))
    assert sampler.stop() == []


def test_missed_moments_are_skipped() -> None:
    assert _compute_next_due(10.0, 0.1, 10.01) == pytest.approx(10.1)
    assert _compute_next_due(10.0, 0.1, 10.57) == pytest.approx(10.6)
    assert _compute_next_due(10.0, 0.1, 9.9) == pytest.approx(10.1)
