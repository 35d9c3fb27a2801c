"""Loads, wakes, sleeps and unloads the worker of a replica, and times each phase."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from enginebay.contract import Facts
from enginebay.errors import EnginebayError, EngineFailed, LoadFailed, OutOfMemory
from enginebay.fleet.lifecycle.background_tasks import EmitEvent
from enginebay.fleet.lifecycle.launch_plan import LaunchPlan
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.lifecycle.standby_pool import StandbyPool
from enginebay.fleet.memory.gpu_needs import build_device_variables
from enginebay.fleet.memory.oom_fallback import reduce_settings
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling.device_placement import Placement
from enginebay.fleet.scheduling.planner import ReplicaState
from enginebay.util.gpus.gpu_discovery import Gpu

Phases = dict[str, float]


class DrainTimeout(Exception):
    """Running requests did not finish within the drain timeout."""


@dataclass(frozen=True, slots=True)
class LoadedWorker:
    worker: ModelWorker
    loaded_from: str  # cold, standby or asleep
    phases: Phases
    accepted_requests: int = 0  # before this load, by the worker's own count
    placement: Placement | None = None  # its GPUs, if it has any


class TransitionExecutor:
    def __init__(
        self, standby_pool: StandbyPool, load_timeout_s: float, emit_event: EmitEvent, gpus: Sequence[Gpu] = ()
    ) -> None:
        self._standby_pool = standby_pool
        self._gpus = gpus
        self.load_timeout_s = load_timeout_s
        self._emit_event = emit_event

    async def load_or_wake(self, replica: Replica) -> LoadedWorker:
        """Wake the replica's worker; load a new one if it has none or does not wake. Raises the load error."""
        worker = replica.worker
        if worker is None:
            return await self._load(replica)
        try:
            return await self._wake(worker)
        except EnginebayError as error:
            event = "model did not wake; reloading it"
            self._emit_event(event, level="warning", model=replica.name, error=error.message)
            replica.worker = None
            await worker.kill()
        return await self._load(replica)

    async def _wake(self, worker: ModelWorker) -> LoadedWorker:
        started = time.perf_counter()
        await worker.client.wake()
        phases = {"load": time.perf_counter() - started}
        return LoadedWorker(worker, "asleep", phases, (await worker.client.state()).requests)

    async def _load(self, replica: Replica) -> LoadedWorker:
        plan = replica.reduced_plan or replica.variant.plan
        if plan is None:
            assert replica.variant.error is not None
            raise replica.variant.error
        try:
            return await self.start_worker(replica.name_log(plan), replica.variant, replica.placement)
        except OutOfMemory as error:
            reduced = self._reduce_plan(replica, plan, error)
            return await self.start_worker(replica.name_log(reduced), replica.variant, replica.placement)

    async def start_worker(
        self, plan: LaunchPlan, variant: Variant, placement: Placement | None, timeout_s: float | None = None
    ) -> LoadedWorker:
        """Start a new worker on these GPUs, next to an existing one if there is one."""
        plan = self._assign_gpus(plan, variant, placement)
        loaded_from = "standby" if self._standby_pool.has_ready(plan.launch) else "cold"
        started = time.perf_counter()
        spare = await self._standby_pool.take(plan.launch)
        imported = time.perf_counter()
        timeout_s = timeout_s or self.load_timeout_s
        worker = await ModelWorker.start(plan, variant.sampling, spare=spare, timeout_s=timeout_s)
        phases = split_load_phases(worker.facts, time.perf_counter() - imported)
        if spare is not None:
            phases["import"] = phases.get("import", 0.0) + imported - started
        return LoadedWorker(worker, loaded_from, phases, placement=placement)

    def _assign_gpus(self, plan: LaunchPlan, variant: Variant, placement: Placement | None) -> LaunchPlan:
        if placement is None or variant.gpu_need is None:
            return plan
        used = variant.gpu_need.list_used(placement)
        devices = build_device_variables(self._gpus, placement, used)
        return replace(plan, launch=replace(plan.launch, devices=devices))

    def _reduce_plan(self, replica: Replica, plan: LaunchPlan, error: OutOfMemory) -> LaunchPlan:
        """Return the plan with smaller settings, or raise `error` if it was reduced before or must not be."""
        if replica.reduced_plan is not None or not replica.variant.settings.smaller_on_out_of_memory:
            raise error
        load = plan.launch.load
        sizes = replica.variant.memory.sizes
        chosen = {name: value for name, value in sizes.items() if name in plan.spec.smaller}
        settings = reduce_settings(plan.spec, {**chosen, **load.settings}, None)
        if settings is None:
            raise error
        changed = {name: value for name, value in settings.items() if load.settings.get(name) != value}
        self._emit_event("loading with smaller settings", level="warning", model=replica.name, settings=changed)
        replica.reduced_plan = replace(plan, launch=replace(plan.launch, load=replace(load, settings=settings)))
        return replica.reduced_plan

    async def sleep_or_unload(self, replica: Replica, to: ReplicaState, timeout_s: float) -> Phases:
        """Drain the worker, then put it to sleep or stop it. Raises `DrainTimeout` and reopens the worker.

        A worker that is gone is not an error.
        """
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
    """Stop accepting requests and wait for the running ones. An unreachable worker counts as drained.

    Raises `DrainTimeout`; with `reopen` the worker then accepts requests again.
    """
    try:
        left = await worker.client.drain(timeout_s)
    except EnginebayError:
        return
    if left:
        if reopen:
            await worker.client.open()
        raise DrainTimeout(f"{left} requests are still running after {timeout_s:g} s")


async def smoke_test(worker: ModelWorker, timeout_s: float) -> None:
    """Generate one token, or embed one, to prove that the loaded model works."""
    if worker.spec.remote:
        return  # loading has already queried the server, and a token may cost money
    try:
        async with asyncio.timeout(timeout_s):
            await _run_smoke_request(worker)
    except TimeoutError:
        raise LoadFailed(
            f"{worker.spec.kind} loaded {worker.handle.model} but did not respond within {timeout_s:g} s (fleet.hang_s)",
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
        raise EngineFailed("the new worker generated no output")


def split_load_phases(facts: Facts, total_s: float) -> Phases:
    """Return the load phases the worker reports; the remaining time counts as `load`."""
    known = {name: seconds for name, seconds in facts.phases.items() if name != "load" and seconds > 0}
    return {**known, "load": max(0.0, total_s - sum(known.values()))}
