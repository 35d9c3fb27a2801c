from __future__ import annotations

import pytest

from enginebay.meters.joule_counter import JouleCounter
from enginebay.meters.sample import Sample
from tests.unit.meters.replay_meter import PowerTrace, ReplayMeter
from tests.unit.meters.trace_playback import ManualClock


class ScriptedMeter:
    """A meter that returns the given readings."""

    name = "scripted"

    def __init__(self, *readings: list[Sample]) -> None:
        self._readings = list(readings)

    def read(self) -> list[Sample]:
        return self._readings.pop(0)

    def close(self) -> None:
        pass


def test_a_known_trace_through_a_counter_that_wraps() -> None:
    clock = ManualClock()
    trace = PowerTrace(((0.0, 100.0), (3.0, 400.0)))
    joules = JouleCounter(ReplayMeter(trace, clock=clock, first_j=950.0, wraps_at_j=1000.0))
    for clock.now_s in (0.0, 1.0, 3.5, 5.0):
        found = joules.read()
        assert found == (clock.now_s, pytest.approx(trace.energy_j(0.0, clock.now_s)))


def test_without_a_counter_by_the_power() -> None:
    joules = JouleCounter(ScriptedMeter([Sample(0.0, "gpu:0", power_w=100)], [Sample(2.0, "gpu:0", power_w=300)]))
    assert joules.read() == (0.0, 0.0) and joules.read() == (2.0, 400.0)


def test_devices_are_summed_and_a_missed_reading_is_caught_up() -> None:
    joules = JouleCounter(
        ScriptedMeter(
            [Sample(0.0, "gpu:0", energy_j=10), Sample(0.0, "gpu:1", energy_j=90)],
            [Sample(1.0, "gpu:0", energy_j=15), Sample(1.0, "gpu:1")],
            [Sample(2.0, "gpu:0", energy_j=30), Sample(2.0, "gpu:1", energy_j=97)],
            [],
        )
    )
    assert [joules.read() for _ in range(4)] == [(0.0, 0.0), None, (2.0, 27.0), None]


def test_a_counter_that_starts_again_loses_one_reading() -> None:
    samples = [[Sample(float(at), "gpu:0", energy_j=value)] for at, value in enumerate((500.0, 600.0, 5.0, 45.0))]
    joules = JouleCounter(ScriptedMeter(*samples))
    assert [found[1] for _ in samples if (found := joules.read())] == [0.0, 100.0, 100.0, 140.0]
