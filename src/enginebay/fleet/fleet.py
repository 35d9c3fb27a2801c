"""All workers of this host: who is loaded, who waits, who leaves, and what happens when one dies.

Decisions are `residency.decide` and `supervision`; this file carries them out. One event loop owns it.

    cold ──raise──▶ awake ──lower──▶ asleep ──raise──▶ awake          a worker that dies leaves its place cold,
      ▲                │                │                             and is raised again after a while
      └─────lower──────┴────lower───────┘
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from enginebay.config.sections.fleet_section import FleetConfig
from enginebay.errors import EnginebayError, LoadFailed, Overloaded, UnknownModel, WorkerDied
from enginebay.fleet.lifecycle import crash_records
from enginebay.fleet.lifecycle.health_monitor import HealthMonitor
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.lifecycle.standby_pool import StandbyPool
from enginebay.fleet.lifecycle.switch_history import Switch, SwitchHistory, merge_phases
from enginebay.fleet.lifecycle.transitions import DrainTimeout, LoadedWorker, Phases, TransitionExecutor
from enginebay.fleet.memory.memory_budget import MemoryBudget
from enginebay.fleet.memory.memory_observed import ObservedResources
from enginebay.fleet.routing.model_client import ReplicaHandle
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling.planner import (
    CancelDrain,
    Drain,
    PlannerAction,
    PlannerLimits,
    PoolBytes,
    Reject,
    ReplicaSnapshot,
    ReplicaState,
    Transition,
    estimate_wait,
    plan_actions,
)
from enginebay.fleet.scheduling.planner_state import MemoryAccount, compute_extra_memory
from enginebay.fleet.scheduling.wait_estimate import WaitEstimate, state_label
from enginebay.fleet.scheduling.wait_queue import WaitQueue
from enginebay.util.hardware import HostFacts
from enginebay.worker.client_side.oom_kills import read_oom_kills

_ARRIVAL_POLL_S = 0.02
_TRANSITION_POLL_S = 0.05
_TICK_S = 1.0
_WAIT_ESTIMATE_TTL_S = 0.5
_MAX_ESTIMATE_S = 3600.0  # an estimate beyond is no estimate

EmitEvent = Callable[..., None]  # (what, level=..., **fields)


class Fleet:
    """`want` a variant to have it awake. `close` ends everything."""

    def __init__(
        self,
        variants: Iterable[Variant],
        config: FleetConfig,
        host: HostFacts,
        observed: ObservedResources,
        emit_event: EmitEvent,
    ) -> None:
        self.config = config
        self.emit_event = emit_event
        self.observed = observed
        self.switch_history = SwitchHistory()
        self.standby_pool = StandbyPool(config.standby, emit_event)
        self.memory_budget = MemoryBudget(config, host, observed)
        self.replicas = {variant.name: self.memory_budget.create_replica(variant) for variant in variants}
        self.transitions = TransitionExecutor(self.standby_pool, config.load_timeout_s, emit_event)
        self._health_monitor = HealthMonitor(config.hang_s, self._handle_unhealthy)
        self._wait_queue = WaitQueue()
        self._recently_freed: list[tuple[float, str, Phases]] = []  # who has left lately, and when
        self._tasks: set[asyncio.Task[Any]] = set()
        self._plan_due = asyncio.Event()
        self._wait_estimates: dict[str, tuple[float, float]] = {}  # when it was made, and its seconds
        self._closing = False
        self._control_loop = asyncio.create_task(self._run_control_loop())

    # What is asked of it

    async def acquire(
        self, name: str, timeout_s: float | None = None, failed_address: str = "", *, queued: bool = True
    ) -> ReplicaHandle:
        """The variant's worker, awake and open, after at most so long.

        `broken`: the address of a worker that whoever asks could not reach; `queued`: as one of the clients, whose
        number is bounded. Raises `Overloaded` when it takes too long or too many wait already, `CrashLoop` or what
        loading said when it cannot be had.
        """
        place = self.get_replica(name)
        if failed_address and place.worker is not None and place.worker.handle.address == failed_address:
            await self._health_monitor.check_reachable(place)
        if place.ready:
            assert place.worker is not None
            place.expect_requests(1)
            return place.worker.handle
        self.raise_if_unavailable(place)
        if queued and self._wait_queue.client_count >= self.config.queue:
            raise Overloaded(
                f"{self._wait_queue.client_count} requests already wait for models to be loaded",
                "try again later; the limit is set by fleet.queue",
                retry_after_s=self.estimate_wait(name).seconds,
            )  # fmt: skip
        number, future = self._wait_queue.add(name, self.config.max_wait_s if timeout_s is None else timeout_s)
        self._plan_due.set()
        self._spawn(self.poll_workers())  # who could leave for it is decided on what is so now
        try:
            return await future
        finally:
            self._wait_queue.remove(number)

    def estimate_wait(self, name: str) -> WaitEstimate:
        """What whoever waits for it is told."""
        place = self.get_replica(name)
        if place.ready:
            return WaitEstimate(name, "awake", 0.0, 0)
        now = time.monotonic()
        made_at, seconds = self._wait_estimates.get(name, (0.0, 0.0))
        if now - made_at > _WAIT_ESTIMATE_TTL_S:  # however many wait for it, it is worked out once
            waiting = self._wait_queue.list_oldest_per_model()
            seconds = estimate_wait(
                now, self.memory_budget.pool_bytes, self._snapshot_replicas(), waiting, self._planner_limits, name
            )
            self._wait_estimates[name] = (now, seconds)
        return WaitEstimate(
            name, state_label(place), min(seconds, _MAX_ESTIMATE_S), self._wait_queue.count_clients(name)
        )

    def get_replica(self, name: str) -> Replica:
        found = self.replicas.get(name)
        if found is None:
            raise UnknownModel(f"there is no model {name!r}", f"there are: {', '.join(self.replicas)}", param="model")
        return found

    def fits_without_eviction(self, name: str) -> bool:
        """Whether it could be loaded without anybody leaving."""
        return self._build_memory_account().fits_now(
            compute_extra_memory(self.memory_budget.snapshot_replica(self.get_replica(name)), ReplicaState.AWAKE)
        )

    def has_memory_for(self, needed: PoolBytes) -> bool:
        return self._build_memory_account().fits_now(needed)

    def _build_memory_account(self) -> MemoryAccount:
        return MemoryAccount(self.memory_budget.pool_bytes, self._snapshot_replicas(), self._planner_limits)

    def count_waiting(self, name: str) -> int:
        return self._wait_queue.count_clients(name)

    def configure(self, config: FleetConfig) -> None:
        """Other rules from now on."""
        self.config = config
        self.memory_budget.configure(config, self.replicas.values())
        self.transitions.load_timeout_s = config.load_timeout_s
        self.standby_pool.kinds = frozenset(config.standby)
        self._health_monitor.hang_s = config.hang_s
        self._plan_due.set()

    def reset_failures(self, replica: Replica) -> None:
        """Somebody has seen to it: the next try is now."""
        replica.crashes.clear()
        replica.load_error, replica.retry_at = None, 0.0
        self._plan_due.set()

    async def sleep_or_unload(self, replica: Replica, to: ReplicaState, timeout_s: float | None = None) -> None:
        """By order rather than by plan. Raises `Overloaded` when requests run on for too long."""
        if replica.in_transition or replica.updating:
            raise Overloaded(f"{replica.name} is {state_label(replica)}", "try again in a moment")
        if replica.state is ReplicaState.COLD or replica.state is to:
            return
        replica.begin_transition(to)
        if not await self._sleep_or_unload(replica, self.config.max_wait_s if timeout_s is None else timeout_s):
            raise Overloaded(f"requests to {replica.name} still run", "try again later")

    def replace_worker(self, replica: Replica, loaded: LoadedWorker, variant: Variant) -> ModelWorker | None:
        """Another worker takes the place; gives back the one that had it, which may still have requests."""
        old = replica.worker
        self.apply_variant(replica, variant)
        self._activate(replica, loaded, time.monotonic())
        return old

    def apply_variant(self, replica: Replica, variant: Variant) -> None:
        """What is loaded here the next time."""
        fresh = self.memory_budget.create_replica(variant)
        for name in ("variant", "key", "awake", "asleep", "need", "idle_s", "raise_s", "min_residency_s"):
            setattr(replica, name, getattr(fresh, name))
        replica.reduced_plan = replica.load_error = replica.facts = replica.last_switch = (
            None  # those were of what it was before
        )
        replica.retry_at, replica.last_failure = 0.0, ""
        replica.crashes.clear()

    def remove_replica(self, name: str) -> ModelWorker | None:
        """The variant is no longer offered; gives back its worker, which may still have requests."""
        place = self.replicas.pop(name)
        worker = place.worker
        place.detach_worker()
        self._wait_queue.fail(name, UnknownModel(f"{name} is no longer served", param="model"))
        return worker

    def preload(self, name: str) -> None:
        """Have it loaded although nobody asks for it yet."""
        self._wait_queue.add_preload(name, self.config.max_wait_s)
        self._plan_due.set()

    async def close(self) -> None:
        self._closing = True
        self._control_loop.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(self._control_loop, *self._tasks, return_exceptions=True)
        for name in self.replicas:
            self._wait_queue.fail(name, WorkerDied("the server is stopping"))
        workers = [place.worker for place in self.replicas.values() if place.worker is not None]
        await asyncio.gather(self.standby_pool.close(), *(worker.close() for worker in workers), return_exceptions=True)
        self.observed.save()

    # Governing

    @property
    def _planner_limits(self) -> PlannerLimits:
        return PlannerLimits(max_awake=self.config.max_awake)

    def _snapshot_replicas(self) -> list[ReplicaSnapshot]:
        return [self.memory_budget.snapshot_replica(place) for place in self.replicas.values()]

    async def _run_control_loop(self) -> None:
        """Look at everything whenever something has happened, and once a second."""
        looked_at = 0.0
        while True:
            try:
                async with asyncio.timeout(_TICK_S):
                    await self._plan_due.wait()
            except TimeoutError:
                pass
            self._plan_due.clear()
            if time.monotonic() - looked_at >= _TICK_S:
                looked_at = time.monotonic()
                self._spawn(self.poll_workers())
            try:
                self._run_planner()
            except Exception as error:  # a plan that fails must not be the last one
                self.emit_event("the plan failed", level="error", error=repr(error))
                await asyncio.sleep(_TICK_S)

    async def poll_workers(self) -> None:
        """Ask all workers how they are."""
        looked_at = [place for place in self.replicas.values() if place.worker is not None and not place.in_transition]
        await asyncio.gather(*(self._health_monitor.poll(place, self._record_first_token) for place in looked_at))
        self._plan_due.set()
        for place in looked_at:
            self.memory_budget.record_memory(place)
            place.oom_kills = read_oom_kills()
        if not any(place.in_transition for place in self.replicas.values()):
            self.memory_budget.refresh_pools(self.replicas.values())
            plans = [place.variant.plan for place in self.replicas.values() if place.variant.plan is not None]
            self.standby_pool.replenish(plans, load_pending=len(self._wait_queue) > 0)

    def _run_planner(self) -> None:
        now = time.monotonic()
        for action in plan_actions(
            now,
            self.memory_budget.pool_bytes,
            self._snapshot_replicas(),
            self._wait_queue.list_all(),
            self._planner_limits,
        ):
            self._execute(action)

    def _execute(self, action: PlannerAction) -> None:
        if isinstance(action, Reject):
            self._reject(action)
            return
        place = self.replicas[action.name]
        if isinstance(action, Transition):
            place.begin_transition(action.to)
            if action.to is ReplicaState.AWAKE:
                self._spawn(self._load_or_wake(place))
            else:
                self._prestart_standby()
                self._spawn(self._sleep_or_unload(place, self.config.max_wait_s))
        elif isinstance(action, Drain):
            place.draining, place.draining_since = True, time.monotonic()
            self._spawn(self._drain_worker(place))
        elif isinstance(action, CancelDrain):
            place.draining = False
            self._spawn(self._cancel_drain(place))

    def _prestart_standby(self) -> None:
        """Somebody makes room: the process of whoever it is for can be started meanwhile, since that takes little."""
        for waiting in self._wait_queue.list_all():
            place = self.replicas.get(waiting.model)
            if place is not None and not place.ready:
                if place.state is ReplicaState.COLD and place.variant.plan is not None:
                    self.standby_pool.prestart(place.variant.plan)
                return

    def _reject(self, refusal: Reject) -> None:
        if refusal.reason == "memory":
            error = _build_no_room_error()
        else:
            error = Overloaded(
                "the request waited for its model as long as it may, and it is not loaded yet", "try again later",
                retry_after_s=refusal.retry_after_s,
            )  # fmt: skip
        self._wait_queue.reject(refusal.id, error)

    def raise_if_unavailable(self, replica: Replica) -> None:
        """At once, so that whoever has another engine to ask need not wait for the next try of this one."""
        error = replica.get_rejection()
        if error is not None:
            raise error.with_traceback(None)  # else each time would add to it
        replica.load_error = None  # one more try

    def list_failures(self) -> dict[str, EnginebayError]:
        """What whoever asks for a variant is refused with now, of those that are in trouble or can never be loaded."""
        account = self._build_memory_account()
        found = dict[str, EnginebayError]()
        for name, place in self.replicas.items():
            if (error := place.get_rejection()) is not None:
                found[name] = error
            elif place.state is not ReplicaState.AWAKE and not account.can_ever_fit(account.replicas[name]):
                found[name] = _build_no_room_error()
        return found

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.emit_event("the fleet failed at something", level="error", error=repr(error))

    # Carrying out

    async def _drain_worker(self, replica: Replica) -> None:
        worker = replica.worker
        if worker is None:
            return
        try:
            left = await worker.client.drain(self.config.max_wait_s)
        except WorkerDied:
            return  # which is seen to elsewhere
        if replica.worker is worker and replica.draining:
            replica.running = left
            self._plan_due.set()

    async def _cancel_drain(self, replica: Replica) -> None:
        worker = replica.worker
        if worker is None:
            return
        try:
            await worker.client.open()
        except EnginebayError as error:
            self.emit_event(
                "a model could not be opened again", level="warning", model=replica.name, error=error.message
            )
            if replica.worker is worker and replica.ready:
                replica.draining = True  # as it was: whoever waits goes on waiting, and the plan tries again
            return
        self._resolve_waiters(replica)

    def _resolve_waiters(self, replica: Replica) -> None:
        if replica.ready and replica.worker is not None:
            replica.expect_requests(self._wait_queue.resolve(replica.name, replica.worker.handle))
            if replica.awaiting_arrivals and len(self._wait_queue) > 0:
                self._spawn(self._poll_until_arrived(replica))
        self._plan_due.set()

    async def _poll_until_arrived(self, replica: Replica) -> None:
        """Others wait: until those whom it was raised for are there its door stays open, and not for longer."""
        while replica.awaiting_arrivals and replica.ready:
            await asyncio.sleep(_ARRIVAL_POLL_S)
            await self.poll_workers()

    async def _load_or_wake(self, replica: Replica) -> None:
        replica.oom_kills = read_oom_kills()
        wanted_at = self._wait_queue.find_oldest_since(replica.name) or time.monotonic()
        try:
            raised = await self._try_wake(replica) or await self.transitions.load(replica)
        except EnginebayError as error:
            self._handle_load_failure(replica, error)
            return
        except Exception as error:  # whatever it is, nobody may be left waiting for it
            self._handle_load_failure(
                replica, LoadFailed(f"{replica.name} could not be loaded: {type(error).__name__}: {error}")
            )
            raise
        self._activate(replica, raised, wanted_at)

    async def _try_wake(self, replica: Replica) -> LoadedWorker | None:
        """From its sleep; None: there is none to wake, or it did not wake as it should and is gone."""
        worker = replica.worker
        if worker is None:
            return None
        try:
            return await self.transitions.wake(worker)
        except EnginebayError as error:
            self.emit_event(
                "a model did not wake, and is loaded anew", level="warning", model=replica.name, error=error.message
            )
            replica.worker = None
            await worker.kill()
            return None

    def _activate(self, replica: Replica, loaded: LoadedWorker, requested_at: float) -> None:
        self._wait_estimates.pop(replica.name, None)  # more is known now of how long it takes
        if loaded.worker is not replica.worker:
            self._spawn(self._await_worker_exit(replica, loaded.worker))
        replica.attach_worker(loaded.worker, loaded.accepted_requests)
        self.memory_budget.record_load(replica, loaded)
        freed = [one for one in self._recently_freed if one[0] >= requested_at and one[1] != replica.name]
        self._recently_freed = []
        phases = merge_phases([loaded.phases, *(spent for _, _, spent in freed)])
        switch = Switch(
            time.time() - sum(phases.values()), replica.name, replica.variant.kind, loaded.loaded_from,
            tuple(name for _, name, _ in freed), phases, self.config.switch_slo_s,
        )  # fmt: skip
        replica.last_switch = switch
        self.switch_history.add(switch)
        self.emit_event("model ready", **switch.to_log_fields())
        warning = switch.format_slo_warning()
        if warning is not None:
            self.emit_event(warning, level="warning", model=replica.name)
        self._resolve_waiters(replica)

    def _record_first_token(self, replica: Replica, seconds: float) -> None:
        if replica.last_switch is not None and "first_token" not in replica.last_switch.phases:
            replica.last_switch = self.switch_history.add_phase(replica.last_switch, "first_token", seconds)

    async def _sleep_or_unload(self, replica: Replica, timeout_s: float) -> bool:
        to, started = replica.state, time.monotonic()
        drained_s = started - replica.draining_since if replica.draining else 0.0  # what ran on behind its closed door
        try:
            spent = await self.transitions.sleep_or_unload(replica, to, timeout_s)
            spent["drain"] = spent.get("drain", 0.0) + drained_s
        except DrainTimeout:
            replica.cancel_transition()
            self._resolve_waiters(replica)
            return False
        except Exception as error:  # it could not sleep: what is left of it is not to be trusted
            self.emit_event("a model could not be put to sleep", level="warning", model=replica.name, error=repr(error))
            spent = {}
            if replica.worker is not None:
                await replica.worker.kill()
            to = ReplicaState.COLD
        if to is ReplicaState.COLD:
            replica.detach_worker()
        else:
            replica.in_transition, replica.draining, replica.idle_since = False, False, time.monotonic()
            self.observed.record_seconds(replica.observation_key, "sleep", spent.get("free", 0.0))
        self._recently_freed.append((started, replica.name, spent))
        self.emit_event("model lowered", model=replica.name, to=to.value, seconds=round(sum(spent.values()), 3))
        self._plan_due.set()
        return True

    # When things go wrong

    async def _await_worker_exit(self, replica: Replica, worker: ModelWorker) -> None:
        """Until the worker's process ends, by whatever death."""
        await worker.process.wait()
        while replica.worker is worker and replica.in_transition:  # whoever moves it may see to it
            await asyncio.sleep(_TRANSITION_POLL_S)
        if replica.worker is worker and not self._closing:
            await self._handle_crash(replica, worker, None)

    async def _handle_unhealthy(self, replica: Replica, reason: str) -> None:
        """The watch has found it hung or out of reach."""
        if replica.worker is not None:
            await self._handle_crash(replica, replica.worker, reason)

    async def _handle_crash(self, replica: Replica, worker: ModelWorker, killed_because: str | None) -> None:
        if replica.worker is not worker:
            return  # somebody else has seen to it
        replica.recovering = replica.state is ReplicaState.AWAKE
        await crash_records.record_crash(replica, worker, killed_because, self.config, self.emit_event)
        if replica.load_error is None:
            if replica.recovering:
                self._wait_queue.add_preload(replica.name, self.config.max_wait_s)
        else:
            self._wait_queue.fail(replica.name, replica.load_error)
        self._schedule_retry(replica)

    def _handle_load_failure(self, replica: Replica, error: EnginebayError) -> None:
        """It was to be raised. What it was asked for cannot wait for another try: that may never succeed."""
        worker = crash_records.record_load_failure(replica, error, self.config, self.emit_event)
        if worker is not None:
            self._spawn(worker.kill())
        self._wait_queue.fail(replica.name, replica.load_error or error)
        self._schedule_retry(replica)

    def _schedule_retry(self, replica: Replica) -> None:
        """Now, and when the next try is due."""
        self._plan_due.set()
        delay_s = max(0.0, replica.retry_at - time.monotonic())
        asyncio.get_running_loop().call_later(delay_s, self._retry_load, replica)

    def _retry_load(self, replica: Replica) -> None:
        """What was awake, or is to be from the start, comes back although nobody asks for it."""
        due = time.monotonic() >= replica.retry_at and replica.worker is None and not replica.in_transition
        if due and not self._closing and self.replicas.get(replica.name) is replica:
            replica.load_error = None
            settings = replica.variant.settings
            if replica.recovering or settings.pinned:
                self._wait_queue.add_preload(replica.name, self.config.max_wait_s)
        self._plan_due.set()


def _build_no_room_error() -> Overloaded:
    return Overloaded(
        "the model does not fit beside those that are pinned: into the memory there is, or into max_awake",
        "see `bay ps`", retry_after_s=60.0,
    )  # fmt: skip
