"""Two systems on one GPU: never both awake, and a failure of one does not affect the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bench.gpu.large_model.large_model_summary import LIMIT_S, summarize
from bench.gpu.large_model.turn_taking import SleepableBay, SleepableOffline, TurnFailed, TurnTaker
from bench.gpu.systems_under_test import SystemUnderTest


class _Machine:
    """A GPU that knows which systems hold memory."""

    def __init__(self) -> None:
        self.awake: set[str] = set()
        self.log: list[str] = []

    def used_bytes(self) -> int:
        return 100 * len(self.awake)


class _Double:
    """Replaces a process. `fails`: the transition that fails."""

    started_s = 1.0

    def __init__(self, name: str, machine: _Machine, fails: str = "") -> None:
        self.name, self._machine, self._fails = name, machine, fails

    def wait_ready(self) -> None:
        self._transition("start")
        if isinstance(self, SleepableOffline):  # ours holds no memory until it is text to load
            self._machine.awake.add(self.name)

    def sleep(self) -> Mapping[str, Any]:
        self._transition("sleep")
        self._machine.awake.discard(self.name)
        return {"seconds": 1.0}

    def wake(self) -> Mapping[str, Any]:
        self._transition("wake")
        self._machine.awake.add(self.name)
        return {"seconds": 1.0}

    def stop(self) -> None:
        self._transition("stop")
        self._machine.awake.discard(self.name)

    def _transition(self, name: str) -> None:
        self._machine.log.append(f"{self.name} {name}")
        if name == self._fails:
            raise TurnFailed(f"{self.name} cannot {name}")
        assert len(self._machine.awake - {self.name}) == 0 or name in ("sleep", "stop")


class _Offline(_Double, SleepableOffline):
    pass


class _Ours(_Double, SleepableBay):
    pass


def _turns(machine: _Machine, offline_fails: str = "", sleeping: bool = True) -> tuple[TurnTaker, list[str]]:
    events: list[str] = []
    makers: dict[str, Callable[[], SystemUnderTest]] = {
        "offline": lambda: _Offline("offline", machine, offline_fails),
        "ours": lambda: _Ours("ours", machine),
    }
    note = lambda event, **fields: events.append(f"{fields['system']} {event}")  # noqa: E731
    return TurnTaker(makers, machine.used_bytes, 50, sleeping, note), events


def test_one_sleeps_before_the_other_wakes() -> None:
    machine = _Machine()
    turns, events = _turns(machine)
    for name in ("offline", "ours", "ours", "offline", "ours"):
        turns.use(name)
        assert machine.awake == {name}
    assert machine.log == [
        "offline start", "offline sleep", "ours start", "ours wake", "ours sleep", "offline wake", "offline sleep", "ours wake",
    ]  # fmt: skip
    assert events[-2:] == ["offline asleep", "ours awake"]


def test_a_prepared_system_is_used() -> None:
    machine = _Machine()
    turns, _ = _turns(machine)
    created: list[SystemUnderTest] = []
    make = turns._makers["ours"]
    turns._makers = {**turns._makers, "ours": lambda: created.append(make()) or created[-1]}  # type: ignore[func-returns-value]
    turns.prepare("ours")
    turns.use("offline")
    assert turns.use("ours") is created[0] and len(created) == 1


def test_a_system_that_cannot_sleep_is_stopped_and_the_other_goes_on() -> None:
    machine = _Machine()
    turns, events = _turns(machine, "sleep")
    turns.use("offline")
    turns.use("ours")
    assert machine.awake == {"ours"} and "offline gone" in events
    with pytest.raises(TurnFailed):
        turns.use("offline")
    assert turns.use("ours") is not None and machine.awake == {"ours"}


def test_a_system_that_does_not_wake_leaves_the_other_asleep_and_usable() -> None:
    machine = _Machine()
    turns, _ = _turns(machine, "wake")
    turns.use("offline")
    turns.use("ours")
    with pytest.raises(TurnFailed):
        turns.use("offline")
    turns.use("ours")
    assert machine.awake == {"ours"}


def _closed(system: str, cycle: int, speed: float) -> dict[str, Any]:
    return {"event": "closed", "system": system, "cycle": cycle, "output_tokens_per_s": speed, "output_tokens": 100}


def test_the_summary_pairs_runs_by_cycle_and_lists_what_is_missing() -> None:
    lines = [
        _closed("offline", 0, 3400.0), _closed("ours", 0, 3300.0), _closed("ours", 1, 3500.0), _closed("offline", 1, 3600.0),
        {**_closed("offline", 2, 9000.0), "gpu_energy_j": 20.0},
        {"event": "window", "latency": "ttft", "output": 128, "rate": 25.0, "met": True, "p95_s": 0.5, "judged": 300, "in_flight": [180, 190]},
        {"event": "found", "latency": "ttft", "output": 128, "rate": 25.0, "above": 26.0, "confirmed": True},
        {"event": "found", "latency": "e2e", "output": 32, "rate": None, "above": None, "confirmed": False},
        {"event": "alone", "output": 32, "seconds": 0.9},
        {"event": "left out", "what": "pairs from 3 of 5 on", "needed_s": 60, "left_s": 20},
    ]  # fmt: skip
    text = "\n".join(summarize(lines))
    assert "ours / offline: 0.971 [" in text and "pairs: 2" in text
    assert "3,400 output tok/s on one GPU, n=2, 2.27 times the target of 1,500" in text
    assert "on eight GPUs at the same rate: 27,200" in text
    assert "1.70 times the target of 2,000" in "\n".join(summarize(lines, target=2000.0))
    assert f"P95 ttft under {LIMIT_S * 1e3:.0f} ms, 128 tokens out: 25 requests/s" in text
    assert "0.200 GPU J per output token" in text
    assert (
        "25 requests/s = 3,200 output tok/s, confirmed; missed at 26; P95 500 ms of 300 requests, in flight 180 to 190"
        in text
    )
    assert "32 tokens out: no rate found (0.900 s without other load)" in text
    assert "SKIPPED: pairs from 3 of 5 on (needs 60 s, 20 s left)" in text
