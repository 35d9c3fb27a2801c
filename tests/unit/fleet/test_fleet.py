"""Drains that cannot be cancelled and crashes during a transition: no request waits past its timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from enginebay.config.resolved_config import ModelConfig
from enginebay.config.sections.fleet_section import FleetConfig
from enginebay.errors import CrashLoop, Overloaded, WorkerDied
from enginebay.fleet.fleet import Fleet
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.memory.memory_observed import ObservedResources
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling.planner import ReplicaState
from enginebay.util.hardware import read_host


class Worker:
    """The part of a worker that the fleet uses."""

    def __init__(self) -> None:
        self.client = self
        self.process = self
        self.handle = SimpleNamespace(address="here")
        self.returncode: int | None = None
        self.ended = asyncio.Event()
        self.failing_opens = 0
        self.is_open = False

    async def state(self) -> Any:
        return SimpleNamespace(
            running=0, requests=0, quiet_s=0.0, memory_bytes=1, idle_s=0.0, open=self.is_open, HasField=lambda _: False
        )

    async def open(self) -> None:
        if self.failing_opens:
            self.failing_opens -= 1
            raise WorkerDied("the worker does not answer")
        self.is_open = True

    async def wait(self) -> int:
        await self.ended.wait()
        self.returncode = -9
        return self.returncode

    def read_log_tail(self) -> str:
        return ""

    async def kill(self) -> None: ...

    async def close(self) -> None: ...


class Site:
    def __init__(self, folder: Path) -> None:
        self.events: list[str] = []
        self.fleet = Fleet(
            [], FleetConfig(max_wait_s=60.0), read_host(), ObservedResources(folder / "measured.json"), self._event
        )
        self.worker = Worker()
        self.replica = Replica(Variant("toy", "toy", "fake", None), "key", {"ram": 1}, None)
        self.replica.worker = cast("Any", self.worker)
        self.replica.state = ReplicaState.AWAKE
        self.replica.last_heard_at = self.replica.awake_since = time.monotonic()
        self.fleet.replicas["toy"] = self.replica

    def _event(self, event: str, **_: Any) -> None:
        self.events.append(event)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    yield site
    await site.fleet.close()


async def test_a_request_times_out_if_a_drain_cannot_be_cancelled(site: Site) -> None:
    site.replica.draining, site.worker.failing_opens = True, 1000
    with pytest.raises(Overloaded, match="timed out waiting"):
        await asyncio.wait_for(site.fleet.acquire("toy", 1.5), 30)
    assert "could not cancel a drain" in site.events


async def test_a_failed_cancel_of_a_drain_is_retried(site: Site) -> None:
    site.replica.draining, site.worker.failing_opens = True, 1
    handle = await asyncio.wait_for(site.fleet.acquire("toy", 30), 30)
    assert handle is cast("Any", site.worker.handle) and site.worker.is_open
    assert site.events.count("could not cancel a drain") == 1


async def test_the_queue_setting_is_named(site: Site) -> None:
    site.replica.draining = True
    site.fleet.config = replace(site.fleet.config, queue=0)
    with pytest.raises(Overloaded) as caught:
        await asyncio.wait_for(site.fleet.acquire("toy", 30), 30)
    assert caught.value.hint.endswith("fleet.queue")


@pytest.mark.parametrize("in_the_middle", [True, False])
async def test_a_crash_during_a_transition_is_handled(site: Site, in_the_middle: bool) -> None:
    """Its last call succeeded, so the transition has noticed nothing."""
    site.fleet.spawn(site.fleet._health_monitor.watch_exit(site.replica, cast("Any", site.worker)))
    site.replica.in_transition = in_the_middle
    site.worker.ended.set()
    await asyncio.sleep(0.2)
    assert (site.replica.worker is None) is not in_the_middle
    site.replica.in_transition = False
    async with asyncio.timeout(30):
        while "worker died" not in site.events:
            await asyncio.sleep(0.01)
    assert site.replica.worker is None


async def test_a_transition_may_handle_the_crash(site: Site) -> None:
    site.fleet.spawn(site.fleet._health_monitor.watch_exit(site.replica, cast("Any", site.worker)))
    site.replica.in_transition = True
    site.worker.ended.set()
    await asyncio.sleep(0.1)
    site.replica.detach_worker()
    await asyncio.sleep(0.2)
    assert "worker died" not in site.events


async def test_failures_are_listed_without_waiting(site: Site) -> None:
    """Lists models in backoff, and models that can never fit."""
    site.fleet.replicas["small"] = small = Replica(Variant("small", "small", "fake", None), "key", {"ram": 1}, None)
    configured = ModelConfig("huge", memory_bytes=2**60)  # an estimate would be capped
    site.fleet.replicas["huge"] = Replica(
        Variant("huge", "huge", "fake", None, settings=configured), "key", {"ram": 2**60}, None
    )
    assert {name: error.kind for name, error in site.fleet.list_failures().items()} == {"huge": "does_not_fit"}
    assert "it needs 1048576.0 TiB of ram, but the budget is " in site.fleet.list_failures()["huge"].message
    small.load_error, small.retry_at = WorkerDied("it was killed"), time.monotonic() + 60
    assert site.fleet.list_failures()["small"] is small.load_error
    small.retry_at = 0.0
    assert set(site.fleet.list_failures()) == {"huge"} and small.load_error is not None, "listing changes nothing"


async def test_workers_of_an_update_hold_memory_until_they_leave(site: Site) -> None:
    half = site.fleet.memory_budget.pool_bytes["ram"] // 2
    configured = ModelConfig("toy", memory_bytes=half + 1)
    big = Replica(Variant("big", "big", "fake", None, settings=configured), "key", {"ram": half + 1}, None)
    site.fleet.replicas["big"] = big
    assert site.fleet.fits_without_eviction("big")
    release = site.fleet.memory_budget.hold(replace(big.take_snapshot(), state=ReplicaState.AWAKE))
    assert not site.fleet.fits_without_eviction("big")
    assert site.fleet.list_failures() == {}  # it is a matter of time
    release()
    assert site.fleet.fits_without_eviction("big")


async def test_a_crash_loop_of_the_first_replica_does_not_hide_the_second(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Variant, "max_replicas", 2)
    variant = Variant("pair", "pair", "fake", None)
    copies = site.fleet.memory_budget.create_replicas(variant)
    site.fleet.replicas |= {copy.name: copy for copy in copies}
    copies[0].load_error, copies[0].retry_at = CrashLoop("it dies", retry_after_s=600), time.monotonic() + 600
    waiting = asyncio.create_task(site.fleet.acquire("pair", 60))
    await asyncio.sleep(0)
    assert site.fleet.is_preloading(copies[1]) and not waiting.done()
    waiting.cancel()
    copies[1].load_error, copies[1].retry_at = copies[0].load_error, copies[0].retry_at
    with pytest.raises(CrashLoop):
        await site.fleet.acquire("pair", 60)


async def test_an_unload_ends_the_loads_that_would_bring_it_back(site: Site) -> None:
    crashed = Replica(Variant("crashed", "crashed", "fake", None), "key", {"ram": 1}, None)
    crashed.recovering = True
    site.fleet.replicas["crashed"] = crashed
    site.fleet.preload("crashed")
    assert site.fleet.is_preloading(crashed)
    await site.fleet.sleep_or_unload(ReplicaState.COLD, crashed)
    assert not site.fleet.is_preloading(crashed) and not crashed.recovering
