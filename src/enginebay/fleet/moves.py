"""Raising a variant and lowering it: what is done to its worker, timed by phase."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from enginebay.contract import Facts
from enginebay.errors import EnginebayError, EngineFailed, LoadFailed, OutOfMemory
from enginebay.fleet import needs
from enginebay.fleet.model_worker import ModelWorker
from enginebay.fleet.place import Place
from enginebay.fleet.plan import Plan
from enginebay.fleet.residency import Depth
from enginebay.fleet.smaller import smaller
from enginebay.fleet.standby import Standbys

Event = Callable[..., None]
Phases = dict[str, float]


class StillBusy(Exception):
    """Requests went on running for longer than we could wait for them."""


@dataclass(frozen=True, slots=True)
class Raised:
    worker: ModelWorker
    how: str  # cold, standby or asleep
    phases: Phases
    requests: int = 0  # that the worker has taken before, by its own count


class Mover:
    def __init__(self, standbys: Standbys, load_timeout_s: float, event: Event) -> None:
        self._standbys = standbys
        self.load_timeout_s = load_timeout_s
        self._event = event

    async def woken(self, worker: ModelWorker) -> Raised:
        started = time.perf_counter()
        await worker.client.wake()
        phases = {"load": time.perf_counter() - started}
        return Raised(worker, "asleep", phases, (await worker.client.state()).requests)

    async def loaded(self, place: Place) -> Raised:
        """A worker for a variant that has none. Raises what kept it from loading."""
        plan = place.smaller or place.variant.plan
        if plan is None:
            assert place.variant.error is not None
            raise place.variant.error
        try:
            return await self.opened(plan, place.variant.sampling)
        except OutOfMemory as error:
            return await self.opened(self._smaller(place, plan, error), place.variant.sampling)

    async def opened(self, plan: Plan, sampling: Mapping[str, Any], timeout_s: float | None = None) -> Raised:
        """A new worker, beside the one that may be there."""
        how = "standby" if self._standbys.ready(plan.launch) else "cold"
        started = time.perf_counter()
        spare = await self._standbys.take(plan.launch)
        imported = time.perf_counter()
        worker = await ModelWorker.open(plan, sampling, spare=spare, timeout_s=timeout_s or self.load_timeout_s)
        phases = phases_of(worker.facts, time.perf_counter() - imported)
        if spare is not None:
            phases["import"] = phases.get("import", 0.0) + imported - started
        return Raised(worker, how, phases)

    def _smaller(self, place: Place, plan: Plan, error: OutOfMemory) -> Plan:
        """The plan with smaller settings, once, where the configuration allows it."""
        if place.smaller is not None or not place.variant.settings.smaller_on_out_of_memory:
            raise error
        load = plan.launch.load
        sizes = needs.sizes(place.need) if place.need is not None else {}
        chosen = {name: value for name, value in sizes.items() if name in plan.spec.smaller}
        settings = smaller(plan.spec, {**chosen, **load.settings}, None)
        if settings is None:
            raise error
        changed = {name: value for name, value in settings.items() if load.settings.get(name) != value}
        self._event("loading with smaller settings", level="warning", model=place.name, settings=changed)
        place.smaller = replace(plan, launch=replace(plan.launch, load=replace(load, settings=settings)))
        return place.smaller

    async def lowered(self, place: Place, to: Depth, patience_s: float) -> Phases:
        """Drain, then sleep or end. Raises `StillBusy` with the door open again; a worker that is gone is no error."""
        worker = place.worker
        if worker is None:
            return {}
        started = time.perf_counter()
        await drain(worker, patience_s)
        drained = time.perf_counter()
        if to is Depth.ASLEEP:
            place.memory_bytes = await worker.client.sleep(place.sleep_level)
        else:
            await worker.close()
        return {"drain": drained - started, "free": time.perf_counter() - drained}


async def drain(worker: ModelWorker, patience_s: float, *, reopen: bool = True) -> None:
    """Until nothing runs, with the door closed. A worker that cannot be asked has nothing that runs.

    Raises `StillBusy` when that takes too long, with the door open again if it is to be.
    """
    try:
        left = await worker.client.drain(patience_s)
    except EnginebayError:
        return
    if left:
        if reopen:
            await worker.client.open()
        raise StillBusy(f"{left} requests still run after {patience_s:g} s")


async def check_answers(worker: ModelWorker, patience_s: float) -> None:
    """One token, or one vector: what is loaded also works."""
    if worker.spec.remote:
        return  # loading it has asked the server what it has; a token may cost money
    try:
        async with asyncio.timeout(patience_s):
            await _answer(worker)
    except TimeoutError:
        raise LoadFailed(
            f"{worker.spec.kind} loaded {worker.resident.model}, but gave no answer within {patience_s:g} s (fleet.hang_s)",
            worker.process.last_words(),
        ) from None


async def _answer(worker: ModelWorker) -> None:
    from enginebay.contract import GenerateRequest, Sampling

    if worker.resident.task == "embed":
        await worker.client.embed([[1]])
        return
    request = GenerateRequest(token_ids=(1,), sampling=Sampling(max_tokens=1, temperature=0.0))
    events = [event async for event in worker.client.generate(request)]
    if not events:
        raise EngineFailed("the new worker answered nothing")


def phases_of(facts: Facts, total_s: float) -> Phases:
    """What the worker tells of its loading; what it does not account for is loading too."""
    known = {name: seconds for name, seconds in facts.phases.items() if name != "load" and seconds > 0}
    return {**known, "load": max(0.0, total_s - sum(known.values()))}
