"""The replay meter."""

from __future__ import annotations

import pytest

from tests.unit.meters.replay_meter import Jump, PowerTrace, Stall
from tests.unit.meters.trace_playback import play_trace

TRACE = PowerTrace(((0.0, 100.0), (2.0, 300.0), (3.0, 50.0)))


def test_a_trace_knows_its_energy() -> None:
    assert TRACE.energy_j(0.0, 4.0) == pytest.approx(550.0)
    assert TRACE.energy_j(1.5, 2.5) == pytest.approx(200.0)
    assert [TRACE.power_w(t) for t in (0.0, 1.99, 2.0, 9.0)] == [100.0, 100.0, 300.0, 50.0]


def counters(times: list[float], **settings: object) -> list[float | None]:
    return [sample.energy_j for sample in play_trace(TRACE, times, **settings)]


def test_the_counter_shows_what_was_drawn_at_its_last_update() -> None:
    assert counters([0.0, 1.0, 2.5]) == [0.0, 100.0, 350.0]
    assert counters([0.9, 1.0, 2.4], period_s=1.0, first_j=7.0) == [7.0, 107.0, 207.0]


def test_the_counter_has_the_faults_it_is_given() -> None:
    assert counters([1.0, 2.5, 4.0], wraps_at_j=300.0) == [100.0, 50.0, 250.0]
    assert counters([1.0, 2.5, 4.0], faults=[Stall(1.0, 3.0)]) == [100.0, 100.0, 150.0]
    assert counters([1.0, 2.5, 4.0], faults=[Stall(1.0, 3.0, catches_up=True)]) == [100.0, 100.0, 550.0]
    assert counters([1.0, 2.5], faults=[Jump(2.0, 1000.0)]) == [100.0, 1350.0]
