"""Doors that do not open and deaths that come while a model moves: nobody waits for longer than they may."""

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
from enginebay.errors import Overloaded, WorkerDied
from enginebay.fleet.fleet import Fleet
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.memory.memory_observed import ObservedResources
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling.planner import ReplicaState
from enginebay.util.hardware import read_host


class Worker:
    """As much of a worker as the fleet looks at."""

    def __init__(self) -> None:
        self.client = self
        self.process = self
        self.resident = SimpleNamespace(address="here")
        self.returncode: int | None = None
        self.ended = asyncio.Event()
        self.refusals = 0  # so many times its door does not open
        self.is_open = False

    async def state(self) -> Any:
        return SimpleNamespace(
            running=0, requests=0, quiet_s=0.0, memory_bytes=1, idle_s=0.0, open=self.is_open, HasField=lambda _: False
        )

    async def open(self) -> None:
        if self.refusals:
            self.refusals -= 1
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
        self.place = Replica(Variant("toy", "toy", "fake", None), "key", {"ram": 1}, None)
        self.place.worker = cast("Any", self.worker)
        self.place.state = ReplicaState.AWAKE
        self.place.last_heard_at = self.place.awake_since = time.monotonic()
        self.fleet.replicas["toy"] = self.place

    def _event(self, what: str, **_: Any) -> None:
        self.events.append(what)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    found = Site(tmp_path)
    yield found
    await found.fleet.close()


async def test_who_waits_at_a_door_that_does_not_open_is_refused_in_time(site: Site) -> None:
    site.place.draining, site.worker.refusals = True, 1000
    with pytest.raises(Overloaded, match="as long as it may"):
        await asyncio.wait_for(site.fleet.acquire("toy", 1.5), 30)
    assert "a model could not be opened again" in site.events


async def test_who_waits_at_a_door_that_opens_the_second_time_is_let_in(site: Site) -> None:
    site.place.draining, site.worker.refusals = True, 1
    found = await asyncio.wait_for(site.fleet.acquire("toy", 30), 30)
    assert found is cast("Any", site.worker.resident) and site.worker.is_open
    assert site.events.count("a model could not be opened again") == 1


async def test_the_setting_for_how_many_may_wait_is_named(site: Site) -> None:
    site.place.draining = True
    site.fleet.config = replace(site.fleet.config, queue=0)
    with pytest.raises(Overloaded) as refused:
        await asyncio.wait_for(site.fleet.acquire("toy", 30), 30)
    assert refused.value.hint.endswith("fleet.queue")


@pytest.mark.parametrize("in_the_middle", [True, False])
async def test_a_death_is_seen_even_if_it_comes_while_the_model_moves(site: Site, in_the_middle: bool) -> None:
    """What was asked of it last was answered, so whoever moved it has noticed nothing."""
    site.fleet._spawn(site.fleet._await_worker_exit(site.place, cast("Any", site.worker)))
    site.place.in_transition = in_the_middle
    site.worker.ended.set()
    await asyncio.sleep(0.2)
    assert (site.place.worker is None) is not in_the_middle
    site.place.in_transition = False
    async with asyncio.timeout(30):
        while "worker died" not in site.events:
            await asyncio.sleep(0.01)
    assert site.place.worker is None


async def test_whoever_moves_it_may_see_to_its_death(site: Site) -> None:
    site.fleet._spawn(site.fleet._await_worker_exit(site.place, cast("Any", site.worker)))
    site.place.in_transition = True
    site.worker.ended.set()
    await asyncio.sleep(0.1)
    site.place.detach_worker()
    await asyncio.sleep(0.2)
    assert "worker died" not in site.events


async def test_who_cannot_be_loaded_is_told_without_a_wait(site: Site) -> None:
    """Those in trouble until their next try, and those for which there can never be room."""
    site.fleet.replicas["small"] = small = Replica(Variant("small", "small", "fake", None), "key", {"ram": 1}, None)
    said = ModelConfig("huge", memory_bytes=2**60)  # a mere prediction might be wrong
    site.fleet.replicas["huge"] = Replica(
        Variant("huge", "huge", "fake", None, settings=said), "key", {"ram": 2**60}, None
    )
    assert {name: error.kind for name, error in site.fleet.list_failures().items()} == {"huge": "overloaded"}
    small.load_error, small.retry_at = WorkerDied("it was ended"), time.monotonic() + 60
    assert site.fleet.list_failures()["small"] is small.load_error
    small.retry_at = 0.0
    assert set(site.fleet.list_failures()) == {"huge"} and small.load_error is not None, "looking changes nothing"
