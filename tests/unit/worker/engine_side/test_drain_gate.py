from __future__ import annotations

import threading
import time

import pytest

from enginebay.errors import Draining
from enginebay.worker.engine_side.drain_gate import DrainGate


def test_it_counts_running_requests() -> None:
    gate = DrainGate()
    gate.enter()
    gate.enter()
    gate.leave()
    assert (gate.running, gate.total_entered, gate.is_open) == (1, 2, True)
    assert gate.measure_idle_s() == 0.0 and gate.measure_busy_s() >= 0.0


def test_a_closed_gate_rejects_requests_and_returns_how_many_run() -> None:
    gate = DrainGate()
    gate.enter()
    assert gate.close() == 1
    with pytest.raises(Draining):
        gate.enter()
    assert (gate.running, gate.total_entered) == (1, 1)
    gate.leave()
    assert gate.close() == 0
    gate.open()
    gate.enter()
    assert gate.running == 1


def test_close_waits_for_the_last_request() -> None:
    gate = DrainGate()
    gate.enter()
    threading.Timer(0.05, gate.leave).start()
    started = time.monotonic()
    assert gate.close(timeout_s=60) == 0
    assert time.monotonic() - started < 30


def test_idle_time_starts_when_the_last_request_ends() -> None:
    gate = DrainGate()
    gate.enter()
    time.sleep(0.02)
    left = time.monotonic()
    gate.leave()
    assert 0.0 <= gate.measure_idle_s() <= time.monotonic() - left and gate.measure_busy_s() == 0.0
