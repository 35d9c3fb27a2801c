"""Deaths that a request caused do not count against the model."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.sections.fleet_section import FleetConfig
from enginebay.errors import CrashLoop
from enginebay.fleet.lifecycle import crash_records
from enginebay.fleet.lifecycle.crash_records import forgive_crashes, record_crash
from enginebay.fleet.lifecycle.replica import Replica

CONFIG = FleetConfig(restarts=2, backoff_s=5.0)


def make_replica() -> Any:
    variant: Any = SimpleNamespace(name="m", kind="fake", error=None, max_replicas=1, idle_s=None)
    return Replica(variant, "key", {}, None, awake_since=time.monotonic() - 1)


def make_worker(address: str) -> Any:
    async def kill() -> None:
        pass

    process = SimpleNamespace(returncode=-11, read_log_tail=lambda: "the end")
    return SimpleNamespace(handle=SimpleNamespace(address=address), process=process, kill=kill)


async def crash(replica: Replica, address: str, events: list[dict[str, Any]]) -> None:
    await record_crash(
        replica, make_worker(address), None, CONFIG, lambda event, **fields: events.append({"event": event, **fields})
    )


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_records, "_VERDICT_S", 0.05)


async def test_forgiven_deaths_make_no_crash_loop() -> None:
    replica, events = make_replica(), []  # type: ignore[var-annotated]
    for number in range(20):
        await crash(replica, f"w{number}", events)
        forgive_crashes(replica, [f"w{number}"], CONFIG)
    assert replica.load_error is None and replica.crashes == [] and replica.retry_at <= time.monotonic()
    assert not any(event.get("crash_loop") for event in events)


async def test_a_verdict_may_come_first_or_a_moment_later() -> None:
    replica, events = make_replica(), []  # type: ignore[var-annotated]
    forgive_crashes(replica, ["w0"], CONFIG)
    await crash(replica, "w0", events)
    assert events[-1]["killed_by_request"] and replica.crashes == []
    for number in (1, 2):
        await crash(replica, f"w{number}", events)
    third = asyncio.create_task(crash(replica, "w3", events))
    await asyncio.sleep(0)
    forgive_crashes(replica, ["w3"], CONFIG)
    await third
    assert replica.load_error is None and len(replica.crashes) == 2


async def test_a_crash_loop_ends_when_its_deaths_are_forgiven() -> None:
    replica, events = make_replica(), []  # type: ignore[var-annotated]
    for number in range(3):
        await crash(replica, f"w{number}", events)
    assert isinstance(replica.load_error, CrashLoop) and replica.retry_at > time.monotonic() + 100
    forgive_crashes(replica, ["w1", "w2"], CONFIG)
    assert replica.load_error is None and replica.retry_at <= time.monotonic()


async def test_other_deaths_still_make_a_crash_loop() -> None:
    replica, events = make_replica(), []  # type: ignore[var-annotated]
    for number in range(3):
        await crash(replica, f"w{number}", events)
        forgive_crashes(replica, ["elsewhere"], CONFIG)
    assert isinstance(replica.load_error, CrashLoop) and events[-1]["crash_loop"]
