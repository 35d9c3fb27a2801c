"""When the next step is decided: late enough to take in what comes, early enough that the device never waits."""

from __future__ import annotations

from collections import deque
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.engines.vllm import late_scheduling
from enginebay.engines.vllm.late_scheduling import Pace

STEP_S, HANDING_S = 0.020, 0.003
TRUSTED_S = 0.9 * STEP_S


def _steady(steps: int, tokens: int = 100) -> tuple[Pace, float]:
    """So many steps, one after the other."""
    pace, now = Pace(), 100.0
    pace.ended(now, tokens, followed=True)
    for _ in range(steps):
        pace.began(now)
        pace.handed(now + HANDING_S)
        now += STEP_S
        pace.ended(now, tokens, followed=True)
    return pace, now


def test_it_waits_until_the_step_is_about_to_end() -> None:
    pace, now = _steady(5)
    assert pace.wait_s(now, 100) == pytest.approx(TRUSTED_S - HANDING_S - 0.001)
    assert pace.wait_s(now + 0.010, 100) == pytest.approx(TRUSTED_S - HANDING_S - 0.001 - 0.010)
    assert pace.wait_s(now + STEP_S, 100) == 0.0


def test_it_does_not_wait_before_it_knows_how_long_steps_take() -> None:
    pace, now = _steady(2)
    assert pace.wait_s(now, 100) == 0.0


def test_a_larger_step_is_expected_to_take_as_long_as_the_largest_known_smaller_one() -> None:
    pace, now = _steady(5)
    assert pace.wait_s(now, 5000) == pace.wait_s(now, 100) > 0.0
    assert pace.wait_s(now, 20) == 0.0  # a smaller one may be over sooner


def test_the_shortest_of_the_last_steps_counts() -> None:
    pace, now = _steady(5)
    pace.ended(now + 0.015, 100, followed=True)
    assert pace.wait_s(now + 0.015, 100) == pytest.approx(0.9 * 0.015 - HANDING_S - 0.001)


def test_waiting_too_long_does_not_teach_it_to_wait_longer() -> None:
    """Handing over takes longer than it knows, so each step waits for its successor: the wait settles, and is not drawn out."""
    pace, now = _steady(16)
    for _ in range(1000):
        pace.began(now + pace.wait_s(now, 100))
        waited = pace.wait_s(now, 100)
        pace.handed(now + waited + HANDING_S)
        now += max(STEP_S, waited + HANDING_S + 0.0015)
        pace.ended(now, 100, followed=True)
    assert pace.wait_s(now, 100) < STEP_S - HANDING_S


def test_after_an_idle_moment_it_decides_at_once() -> None:
    pace, now = _steady(5)
    pace.ended(now + STEP_S, 100, followed=False)
    assert pace.wait_s(now + STEP_S, 100) == 0.0


class _Core:
    """As much of vLLM's engine process as is touched."""

    def __init__(self) -> None:
        self.batch_queue: deque[Any] = deque(maxlen=2)
        self.input_queue: Queue[tuple[str, str]] = Queue()
        self.handled: list[tuple[str, str]] = []
        self.model_executor = SimpleNamespace(sample_tokens=lambda: "future")
        self.taken = 0

    def _process_input_queue(self) -> None:
        self.taken += 1

    def _handle_client_request(self, kind: str, request: str) -> None:
        self.handled.append((kind, request))

    def step_with_batch_queue(self) -> tuple[dict[int, Any] | None, bool]:
        self.batch_queue.appendleft(("future", SimpleNamespace(total_num_scheduled_tokens=100), None))
        self.model_executor.sample_tokens()
        if len(self.batch_queue) < 2:
            return None, True
        self.batch_queue.pop()
        return {}, True


def test_requests_that_come_while_it_waits_are_in_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    class Core(_Core):
        pass

    late_scheduling.install(Core)
    late_scheduling.install(Core)  # a second time changes nothing
    now = 0.0
    monkeypatch.setattr(late_scheduling, "monotonic", lambda: now)
    core = Core()
    for _ in range(8):
        core._process_input_queue()
        core.step_with_batch_queue()
        now += STEP_S
    assert core.taken == 8
    core.input_queue.put(("add", "late"))
    core.step_with_batch_queue()
    core._process_input_queue()
    assert core.handled == [("add", "late")]


def test_it_keeps_off_what_it_does_not_know() -> None:
    assert late_scheduling.why_not(_Core, "0.26.0") is None
    assert "not tried" in str(late_scheduling.why_not(_Core, "0.99.0"))
    assert "another _process_input_queue" in str(late_scheduling.why_not(SimpleNamespace(), "0.26.0"))
