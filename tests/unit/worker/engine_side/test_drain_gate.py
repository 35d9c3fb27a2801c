from __future__ import annotations

import threading
import time

import pytest

from enginebay.errors import Draining
from enginebay.worker.engine_side.drain_gate import DrainGate


def test_it_counts_who_is_in() -> None:
    door = DrainGate()
    door.enter()
    door.enter()
    door.leave()
    assert (door.running, door.total_entered, door.is_open) == (1, 2, True)
    assert door.measure_idle_s() == 0.0 and door.measure_busy_s() >= 0.0


def test_closed_it_lets_nobody_in_and_tells_who_is_left() -> None:
    door = DrainGate()
    door.enter()
    assert door.close() == 1
    with pytest.raises(Draining):
        door.enter()
    assert (door.running, door.total_entered) == (1, 1)
    door.leave()
    assert door.close() == 0
    door.open()
    door.enter()
    assert door.running == 1


def test_closing_waits_for_the_last_one() -> None:
    door = DrainGate()
    door.enter()
    threading.Timer(0.05, door.leave).start()
    started = time.monotonic()
    assert door.close(timeout_s=60) == 0
    assert time.monotonic() - started < 30


def test_idle_time_begins_when_the_last_one_leaves() -> None:
    door = DrainGate()
    door.enter()
    time.sleep(0.02)
    left = time.monotonic()
    door.leave()
    assert 0.0 <= door.measure_idle_s() <= time.monotonic() - left and door.measure_busy_s() == 0.0
