from __future__ import annotations

import threading
import time

import pytest

from enginebay.errors import Draining
from enginebay.worker.door import Door


def test_it_counts_who_is_in() -> None:
    door = Door()
    door.enter()
    door.enter()
    door.leave()
    assert (door.running, door.entered, door.is_open) == (1, 2, True)
    assert door.idle_s() == 0.0 and door.busy_s() >= 0.0


def test_closed_it_lets_nobody_in_and_tells_who_is_left() -> None:
    door = Door()
    door.enter()
    assert door.close() == 1
    with pytest.raises(Draining):
        door.enter()
    assert (door.running, door.entered) == (1, 1)
    door.leave()
    assert door.close() == 0
    door.open()
    door.enter()
    assert door.running == 1


def test_closing_waits_for_the_last_one() -> None:
    door = Door()
    door.enter()
    threading.Timer(0.05, door.leave).start()
    started = time.monotonic()
    assert door.close(patience_s=60) == 0
    assert time.monotonic() - started < 30


def test_idle_time_begins_when_the_last_one_leaves() -> None:
    door = Door()
    door.enter()
    time.sleep(0.02)
    left = time.monotonic()
    door.leave()
    assert 0.0 <= door.idle_s() <= time.monotonic() - left and door.busy_s() == 0.0
