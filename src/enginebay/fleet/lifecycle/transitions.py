"""Raising a variant and lowering it: what is done to its worker, timed by phase."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from enginebay.contract import Facts
from enginebay.errors import EnginebayError, EngineFailed, LoadFailed, OutOfMemory
from enginebay.fleet.lifecycle.launch_plan import LaunchPlan
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.lifecycle.standby_pool import StandbyPool
from enginebay.fleet.memory import memory_estimate
from enginebay.fleet.memory.oom_fallback import reduce_settings
from enginebay.fleet.scheduling.planner import ReplicaState

EmitEvent = Callable[..., None]
Phases = dict[str, float]


class DrainTimeout(Exception):
    """Requests went on running for longer than we could wait for them."""


@dataclass(frozen=True, slots=True)
class LoadedWorker:
    worker: ModelWorker
    loaded_from: str  # cold, standby or asleep
    phases: Phases
    accepted_requests: int = 0  # that the worker has taken before, by its own count


class TransitionExecutor:
    def __init__(self, standby_pool: StandbyPool, load_timeout_s: float, emit_event: EmitEvent) -> None:
        self._standby_pool = standby_pool
        self.load_timeout_s = load_timeout_s
        self._emit_event = emit_event

    async def wake(self, worker: ModelWorker) -> LoadedWorker:
        started = time.perf_counter()
        await worker.client.wake()
        phases = {"load": time.perf_counter() - started}
        return LoadedWorker(worker, "asleep", phases, (await worker.client.state()).requests)

    async def load(self, replica: Replica) -> LoadedWorker:
        """A worker for a variant that has none. Raises what kept it from loading."""
        plan = replica.reduced_plan or replica.variant.plan
        if plan is None:
            assert replica.variant.error is not None
            raise replica.variant.error
        try:
            return await self.start_worker(plan, replica.variant.sampling)
        except OutOfMemory as error:
            return await self.start_worker(self._reduce_plan(replica, plan, error), replica.variant.sampling)

    async def start_worker(
        self, plan: LaunchPlan, sampling: Mapping[str, Any], timeout_s: float | None = None
    ) -> LoadedWorker:
        """A new worker, beside the one that may be there."""
        how = "standby" if self._standby_pool.has_ready(plan.launch) else "cold"
        started = time.perf_counter()
        spare = await self._standby_pool.take(plan.launch)
        imported = time.perf_counter()
        worker = await ModelWorker.start(plan, sampling, spare=spare, timeout_s=timeout_s or self.load_timeout_s)
        phases = split_load_phases(worker.facts, time.perf_counter() - imported)
        if spare is not None:
            phases["import"] = phases.get("import", 0.0) + imported - started
        return LoadedWorker(worker, how, phases)

    def _reduce_plan(self, replica: Replica, plan: LaunchPlan, error: OutOfMemory) -> LaunchPlan:
        """The plan with smaller settings, once, where the configuration allows it."""
        if replica.reduced_plan is not None or not replica.variant.settings.smaller_on_out_of_memory:
            raise error
        load = plan.launch.load
        sizes = memory_estimate.resolve_size_settings(replica.memory_facts) if replica.memory_facts is not None else {}
        chosen = {name: value for name, value in sizes.items() if name in plan.spec.smaller}
        settings = reduce_settings(plan.spec, {**chosen, **load.settings}, None)
        if settings is None:
            raise error
        changed = {name: value for name, value in settings.items() if load.settings.get(name) != value}
        self._emit_event("loading with smaller settings", level="warning", model=replica.name, settings=changed)
        replica.reduced_plan = replace(plan, launch=replace(plan.launch, load=replace(load, settings=settings)))
        return replica.reduced_plan

    async def sleep_or_unload(self, replica: Replica, to: ReplicaState, timeout_s: float) -> Phases:
        """Drain, then sleep or end. Raises `StillBusy` with the door open again; a worker that is gone is no error."""
        worker = replica.worker
        if worker is None:
            return {}
        started = time.perf_counter()
        await drain(worker, timeout_s)
        drained = time.perf_counter()
        if to is ReplicaState.ASLEEP:
            replica.memory_bytes = await worker.client.sleep(replica.sleep_level)
        else:
            await worker.close()
        return {"drain": drained - started, "free": time.perf_counter() - drained}


async def drain(worker: ModelWorker, timeout_s: float, *, reopen: bool = True) -> None:
    """Until nothing runs, with the door closed. A worker that cannot be asked has nothing that runs.

    Raises `StillBusy` when that takes too long, with the door open again if it is to be.
    """
    try:
        left = await worker.client.drain(timeout_s)
    except EnginebayError:
        return
    if left:
        if reopen:
            await worker.client.open()
        raise DrainTimeout(f"{left} requests still run after {timeout_s:g} s")


async def smoke_test(worker: ModelWorker, timeout_s: float) -> None:
    """One token, or one vector: what is loaded also works."""
    if worker.spec.remote:
        return  # loading it has asked the server what it has; a token may cost money
    try:
        async with asyncio.timeout(timeout_s):
            await _run_smoke_request(worker)
    except TimeoutError:
        raise LoadFailed(
            f"{worker.spec.kind} loaded {worker.handle.model}, but gave no answer within {timeout_s:g} s (fleet.hang_s)",
            worker.process.read_log_tail(),
        ) from None


async def _run_smoke_request(worker: ModelWorker) -> None:
    from enginebay.contract import GenerateRequest, Sampling

    if worker.handle.task == "embed":
        await worker.client.embed([[1]])
        return
    request = GenerateRequest(token_ids=(1,), sampling=Sampling(max_tokens=1, temperature=0.0))
    events = [event async for event in worker.client.generate(request)]
    if not events:
        raise EngineFailed("the new worker answered nothing")


def split_load_phases(facts: Facts, total_s: float) -> Phases:
    """What the worker tells of its loading; what it does not account for is loading too."""
    known = {name: seconds for name, seconds in facts.phases.items() if name != "load" and seconds > 0}
    return {**known, "load": max(0.0, total_s - sum(known.values()))}
