"""All replicas of this host: loads, evicts and restarts them, and queues the requests that wait for one.

`scheduling.planner` and `lifecycle.crash_policy` decide; this module executes. One event loop owns it.

    cold ──load──▶ awake ──sleep──▶ asleep ──wake──▶ awake
      ▲              │                │
      └───unload─────┴────unload──────┘          a crash leaves a replica cold; it restarts after a backoff
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace

from enginebay.config.sections.fleet_section import FleetConfig
from enginebay.errors import EnginebayError, LoadFailed, Overloaded, UnknownModel, WorkerDied
from enginebay.fleet.lifecycle.background_tasks import BackgroundTasks, EmitEvent
from enginebay.fleet.lifecycle.crash_recovery import CrashRecovery
from enginebay.fleet.lifecycle.gpu_watch import GpuWatch
from enginebay.fleet.lifecycle.health_monitor import HealthMonitor
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.lifecycle.replica_scaler import ReplicaScaler, find_ready
from enginebay.fleet.lifecycle.standby_pool import StandbyPool
from enginebay.fleet.lifecycle.switch_history import SwitchHistory
from enginebay.fleet.lifecycle.transitions import DrainTimeout, LoadedWorker, TransitionExecutor
from enginebay.fleet.memory.memory_budget import MemoryBudget
from enginebay.fleet.memory.memory_errors import build_no_memory_error
from enginebay.fleet.memory.memory_observed import ObservedResources
from enginebay.fleet.routing.model_client import ReplicaHandle
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling import planner
from enginebay.fleet.scheduling.planner_state import MemoryAccount, ReplicaState
from enginebay.fleet.scheduling.wait_estimate import WaitEstimate, state_label
from enginebay.fleet.scheduling.wait_queue import WaitQueue
from enginebay.util.hardware import HostFacts
from enginebay.worker.client_side.oom_kills import read_oom_kills

_ARRIVAL_POLL_S = 0.02
_TICK_S = 1.0
_WAIT_ESTIMATE_TTL_S = 0.5
_MAX_ESTIMATE_S = 3600.0


class Fleet:
    """`acquire` returns a variant's awake worker. `close` stops all workers."""

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
        created = [replica for variant in variants for replica in self.memory_budget.create_replicas(variant)]
        self.replicas = {replica.name: replica for replica in created}
        self.transitions = TransitionExecutor(self.standby_pool, config.load_timeout_s, emit_event, host.gpus)
        self.gpu_watch = GpuWatch(host.gpus, self.memory_budget.set_gpus, emit_event)
        self.recovery = CrashRecovery(self)
        self._health_monitor = HealthMonitor(config.hang_s, self.recovery.handle_crash)
        self.wait_queue = WaitQueue()
        self._tasks = BackgroundTasks(lambda error: emit_event("fleet task failed", level="error", error=repr(error)))
        self.spawn = self._tasks.spawn
        self._plan_due = asyncio.Event()
        self._wait_estimates: dict[str, tuple[float, float]] = {}  # computed at, seconds
        self.scaler = ReplicaScaler(self)
        self.closing = False
        self._control_loop = asyncio.create_task(self._run_control_loop())

    # Public API

    async def acquire(
        self, name: str, timeout_s: float | None = None, failed_address: str = "", *, queued: bool = True
    ) -> ReplicaHandle:
        """Return the handle of one of the variant's workers once it is awake and accepts requests.

        `failed_address`: a worker address the caller could not reach. `queued`: count against `fleet.queue`.
        Raises `Overloaded` on timeout or a full queue, and `CrashLoop` or the load error if it cannot load.
        """
        replica = self.get_replica(name)
        copies = self.list_copies(replica)
        for copy in copies:
            if failed_address and copy.worker is not None and copy.worker.handle.address == failed_address:
                await self._health_monitor.check_reachable(copy)
        if (ready := find_ready(copies)) is not None:
            assert ready.worker is not None
            ready.expect_requests(1)
            return ready.worker.handle
        name = replica.variant.name
        if not any(copy.state is ReplicaState.AWAKE for copy in copies):
            available = next((copy for copy in copies if copy.get_rejection() is None), copies[0])
            self.raise_if_unavailable(available)
            if available.number > 1:  # the first one fails again and again
                self.preload(available.name)
        if queued and (waiting := self.wait_queue.client_count) >= self.config.queue:
            message = f"{waiting} requests are already waiting for models to load"
            wait_s = self.estimate_wait(name).seconds
            raise Overloaded(message, "retry later, or raise fleet.queue", retry_after_s=wait_s)
        number, future = self.wait_queue.add(name, self.config.max_wait_s if timeout_s is None else timeout_s)
        self.request_plan()
        self.spawn(self.poll_workers())  # eviction needs fresh request counts
        try:
            return await future
        finally:
            self.wait_queue.remove(number)

    def estimate_wait(self, name: str) -> WaitEstimate:
        """Estimate how long a request waits for this variant."""
        replica = self.get_replica(name)
        if find_ready(self.list_copies(replica)) is not None:
            return WaitEstimate(name, "awake", 0.0, 0)
        now = time.monotonic()
        computed_at, seconds = self._wait_estimates.get(name, (0.0, 0.0))
        if now - computed_at > _WAIT_ESTIMATE_TTL_S:  # one simulation serves all its waiting clients
            waiting = self.wait_queue.list_oldest_per_model()
            pools, snapshots = self.memory_budget.pool_bytes, self._snapshot_replicas()
            seconds = planner.estimate_wait(now, pools, snapshots, waiting, self._planner_limits, name)
            self._wait_estimates[name] = (now, seconds)
        return WaitEstimate(name, state_label(replica), min(seconds, _MAX_ESTIMATE_S), self.count_waiting(name))

    def get_replica(self, name: str) -> Replica:
        replica = self.replicas.get(name)
        if replica is None:
            raise UnknownModel(f"unknown model {name!r}", f"available: {', '.join(self.replicas)}", param="model")
        return replica

    def list_copies(self, replica: Replica) -> list[Replica]:
        """Return all replicas of this one's variant, itself included."""
        if replica.variant.max_replicas == 1:
            return [replica]
        return [other for other in self.replicas.values() if other.variant.name == replica.variant.name]

    def fits_without_eviction(self, name: str) -> bool:
        """Return whether the variant could load without an eviction."""
        account = self.build_memory_account()
        return account.find_room(account.replicas[name]) is not None

    def build_memory_account(self) -> MemoryAccount:
        return MemoryAccount(self.memory_budget.pool_bytes, self._snapshot_replicas(), self._planner_limits)

    def count_waiting(self, name: str) -> int:
        return self.wait_queue.count_clients(name)

    def configure(self, config: FleetConfig) -> None:
        """Apply a changed fleet section."""
        self.config = config
        self.memory_budget.configure(config, self.replicas.values())
        self.transitions.load_timeout_s = config.load_timeout_s
        self.standby_pool.kinds = frozenset(config.standby)
        self._health_monitor.hang_s = config.hang_s
        self.request_plan()

    def reset_failures(self, replica: Replica) -> None:
        """Forget crashes and load errors, so that the next load starts at once."""
        replica.reset_failures()
        self.request_plan()

    async def sleep_or_unload(self, to: ReplicaState, *replicas: Replica, for_update: bool = False) -> None:
        """Sleep or unload on command, without the planner. Raises `Overloaded` if running requests do not drain."""
        for replica in replicas:
            if replica.in_transition or replica.updating is not for_update:
                raise Overloaded(f"{replica.name} is {state_label(replica)}", "retry in a moment")
        leaving = [replica for replica in replicas if replica.state not in (ReplicaState.COLD, to)]
        for replica in () if for_update else replicas:  # or it would load again
            self.wait_queue.end_preload(replica.name)
            replica.recovering = False
        for replica in leaving:  # all at once, or the scaler would replace the first
            replica.begin_transition(to)
        self.request_plan()
        done = await asyncio.gather(*(self._sleep_or_unload(replica, self.config.max_wait_s) for replica in leaving))
        for replica, drained in zip(leaving, done, strict=True):
            if not drained:
                raise Overloaded(f"{replica.name} still has running requests", "retry later")

    def begin_unload(self, replica: Replica) -> None:
        """Unload it once its requests have finished, unless they take too long."""
        replica.begin_transition(ReplicaState.COLD)
        self.spawn(self._sleep_or_unload(replica, self.config.max_wait_s))

    def replace_worker(self, replica: Replica, loaded: LoadedWorker, variant: Variant) -> None:
        """Switch the replica to a loaded worker. The old one may still run requests."""
        self.apply_variant(replica, variant)
        replica.place(loaded.placement, "free beside the worker it replaced")
        self._activate(replica, loaded, time.monotonic())

    def apply_variant(self, replica: Replica, variant: Variant) -> None:
        """Make the replica load this variant the next time."""
        replica.adopt_variant(self.memory_budget.create_replica(variant))
        self.request_plan()

    def remove_replica(self, name: str) -> None:
        """Stop serving a variant, or remove one of its replicas."""
        del self.replicas[name]
        self.wait_queue.fail(name, UnknownModel(f"{name} is no longer served", param="model"))

    def preload(self, name: str) -> None:
        """Load a variant before the first request for it."""
        self.wait_queue.add_preload(name, self.config.max_wait_s)
        self.request_plan()

    def is_preloading(self, replica: Replica) -> bool:
        """Return whether its load is queued."""
        return self.wait_queue.has_preload(replica.name)

    async def close(self) -> None:
        self.closing = True
        self._control_loop.cancel()
        await asyncio.gather(self._control_loop, self._tasks.cancel(), return_exceptions=True)
        for name in self.replicas:
            self.wait_queue.fail(name, WorkerDied("the server is stopping"))
        workers = [replica.worker for replica in self.replicas.values() if replica.worker is not None]
        await asyncio.gather(self.standby_pool.close(), *(worker.close() for worker in workers), return_exceptions=True)
        self.gpu_watch.close()
        self.observed.save()

    # Control loop

    def request_plan(self) -> None:
        self._plan_due.set()

    @property
    def _planner_limits(self) -> planner.PlannerLimits:
        return planner.PlannerLimits(max_awake=self.config.max_awake, links=self.memory_budget.links)

    def _snapshot_replicas(self) -> list[planner.ReplicaSnapshot]:
        replicas = self.replicas.values()
        snapshots = [self.memory_budget.snapshot_replica(replica) for replica in replicas]
        loaded = {replica.variant.name for replica in replicas if replica.state is ReplicaState.AWAKE}
        own = [  # only the first copy of a model takes memory from others
            replace(snapshot, evicts=False)
            if replica.number > 1 or (replica.variant.name in loaded and replica.state is not ReplicaState.AWAKE)
            else snapshot
            for replica, snapshot in zip(replicas, snapshots, strict=True)
        ]
        return own + self.memory_budget.list_held()

    async def _run_control_loop(self) -> None:
        """Run the planner on every change and once a second."""
        polled_at = 0.0
        while True:
            try:
                async with asyncio.timeout(_TICK_S):
                    await self._plan_due.wait()
            except TimeoutError:
                pass
            self._plan_due.clear()
            if time.monotonic() - polled_at >= _TICK_S:
                polled_at = time.monotonic()
                self.spawn(self.poll_workers())
            try:
                self._run_planner()
                self.scaler.run()
            except Exception as error:  # the loop must survive a planner bug
                self.emit_event("planner failed", level="error", error=repr(error))
                await asyncio.sleep(_TICK_S)

    async def poll_workers(self) -> None:
        """Poll the state of all workers."""
        replicas = self.replicas.values()
        settled = [replica for replica in replicas if replica.worker is not None and not replica.in_transition]
        await asyncio.gather(*(self._health_monitor.poll(replica, self._record_first_token) for replica in settled))
        self.spawn(self.gpu_watch.check())
        self.request_plan()
        for replica in settled:
            self.memory_budget.record_memory(replica)
            replica.oom_kills = read_oom_kills()
        if not any(replica.in_transition for replica in replicas):
            self.memory_budget.refresh_pools(replicas)
            plans = [replica.variant.plan for replica in replicas if replica.variant.plan is not None]
            self.standby_pool.replenish(plans, load_pending=len(self.wait_queue) > 0)

    def _run_planner(self) -> None:
        pools, snapshots = self.memory_budget.pool_bytes, self._snapshot_replicas()
        waiting = self.wait_queue.list_all()
        for action in planner.plan_actions(time.monotonic(), pools, snapshots, waiting, self._planner_limits):
            self._execute(action)

    def _execute(self, action: planner.PlannerAction) -> None:
        if isinstance(action, planner.Reject):
            self._reject(action)
            return
        replica = self.replicas[action.name]
        if isinstance(action, planner.Transition):
            replica.begin_transition(action.to, action.placement, action.reason)
            if action.to is ReplicaState.AWAKE:
                self.spawn(self._load_or_wake(replica))
            else:
                self._prestart_standby()
                self.spawn(self._sleep_or_unload(replica, self.config.max_wait_s))
        elif isinstance(action, planner.Drain):
            replica.draining, replica.draining_since = True, time.monotonic()
            self.spawn(self._drain_worker(replica))
        elif isinstance(action, planner.CancelDrain):
            replica.draining = False
            self.spawn(self._cancel_drain(replica))

    def _prestart_standby(self) -> None:
        """Start the next model's process while another one frees memory: imports need little of it."""
        for waiting in self.wait_queue.list_all():
            replica = self.replicas.get(waiting.model)
            if replica is not None and not replica.ready:
                if replica.state is ReplicaState.COLD and replica.variant.plan is not None:
                    self.standby_pool.prestart(replica.variant.plan)
                return

    def _reject(self, action: planner.Reject) -> None:
        error: EnginebayError
        if action.reason == "deadline":
            after_s = action.retry_after_s
            error = Overloaded("timed out waiting for the model to load", "retry later", retry_after_s=after_s)
        else:
            account = self.build_memory_account()
            error = build_no_memory_error(account.replicas[self.wait_queue.get_model(action.id)], account)
        self.wait_queue.reject(action.id, error)

    def raise_if_unavailable(self, replica: Replica) -> None:
        """Raise the replica's error while it backs off, so that the caller can fall back without waiting."""
        error = replica.get_rejection()
        if error is not None:
            raise error.with_traceback(None)  # otherwise every raise extends its traceback
        replica.load_error = None

    def list_failures(self) -> dict[str, EnginebayError]:
        """Return the error per variant that fails now or can never fit into memory."""
        account = self.build_memory_account()
        failures = dict[str, EnginebayError]()
        for name, replica in self.replicas.items():
            if replica.number > 1 or find_ready(self.list_copies(replica)) is not None:
                continue
            if (error := replica.get_rejection()) is not None:
                failures[name] = error
            elif replica.state is not ReplicaState.AWAKE and not account.can_ever_fit(account.replicas[name]):
                failures[name] = build_no_memory_error(account.replicas[name], account)
        return failures

    # Transitions

    async def _drain_worker(self, replica: Replica) -> None:
        worker = replica.worker
        if worker is None:
            return
        try:
            left = await worker.client.drain(self.config.max_wait_s)
        except WorkerDied:
            return  # the health monitor reports the crash
        if replica.worker is worker and replica.draining:
            replica.running = left
            self.request_plan()

    async def _cancel_drain(self, replica: Replica) -> None:
        worker = replica.worker
        if worker is None:
            return
        try:
            await worker.client.open()
        except EnginebayError as error:
            self.emit_event("could not cancel a drain", level="warning", model=replica.name, error=error.message)
            if replica.worker is worker and replica.ready:
                replica.draining = True  # requests keep waiting, and the planner retries
            return
        self._resolve_waiters(replica)

    def _resolve_waiters(self, replica: Replica) -> None:
        if replica.ready and replica.worker is not None:
            self.wait_queue.end_preload(replica.name)
            replica.expect_requests(self.wait_queue.resolve(replica.variant.name, replica.worker.handle))
            if replica.awaiting_arrivals and len(self.wait_queue) > 0:
                self.spawn(self._poll_until_arrived(replica))
        self.request_plan()

    async def _poll_until_arrived(self, replica: Replica) -> None:
        """Poll often while others wait, so that eviction starts as soon as the expected requests have arrived."""
        while replica.awaiting_arrivals and replica.ready:
            await asyncio.sleep(_ARRIVAL_POLL_S)
            await self.poll_workers()

    async def _load_or_wake(self, replica: Replica) -> None:
        replica.oom_kills = read_oom_kills()
        requested_at = self.wait_queue.find_oldest_since(replica.name) or time.monotonic()
        try:
            loaded = await self.transitions.load_or_wake(replica)
        except EnginebayError as error:
            self.recovery.handle_load_failure(replica, error)
            return
        except Exception as error:  # waiting requests must fail too
            message = f"{replica.name} could not be loaded: {type(error).__name__}: {error}"
            self.recovery.handle_load_failure(replica, LoadFailed(message))
            raise
        self._activate(replica, loaded, requested_at)

    def _activate(self, replica: Replica, loaded: LoadedWorker, requested_at: float) -> None:
        self._wait_estimates.pop(replica.name, None)  # the load time is known better now
        if loaded.worker is not replica.worker:
            self.spawn(self._health_monitor.watch_exit(replica, loaded.worker))
        replica.attach_worker(loaded.worker, loaded.accepted_requests)
        replica.name_worker()
        self.memory_budget.record_load(replica, loaded)
        switch = self.switch_history.record_ready(
            replica.name, replica.variant.kind, loaded.loaded_from, loaded.phases, requested_at,
            self.config.switch_slo_s,
        )  # fmt: skip
        replica.last_switch = switch
        self.emit_event("model ready", **{**switch.to_log_fields(), **replica.log_names})
        if (warning := switch.format_slo_warning()) is not None:
            self.emit_event(warning, level="warning", model=replica.name)
        self._resolve_waiters(replica)

    def _record_first_token(self, replica: Replica, seconds: float) -> None:
        if replica.last_switch is not None and "first_token" not in replica.last_switch.phases:
            replica.last_switch = self.switch_history.add_phase(replica.last_switch, "first_token", seconds)

    async def _sleep_or_unload(self, replica: Replica, timeout_s: float) -> bool:
        to, started = replica.state, time.monotonic()
        drained_s = started - replica.draining_since if replica.draining else 0.0  # before this transition
        try:
            spent = await self.transitions.sleep_or_unload(replica, to, timeout_s)
            spent["drain"] = spent.get("drain", 0.0) + drained_s
        except DrainTimeout:
            replica.cancel_transition()
            self._resolve_waiters(replica)
            return False
        except Exception as error:  # an engine that failed half-way is in an unknown state
            self.emit_event("model could not sleep; killing it", level="warning", model=replica.name, error=repr(error))
            spent = {}
            if replica.worker is not None:
                await replica.worker.kill()
            to = ReplicaState.COLD
        if to is ReplicaState.COLD:
            replica.detach_worker()
        else:
            replica.in_transition, replica.draining, replica.idle_since = False, False, time.monotonic()
            self.observed.record_seconds(replica.observation_key, "sleep", spent.get("free", 0.0))
        self.switch_history.record_freed(started, replica.name, spent)
        event = "model unloaded" if to is ReplicaState.COLD else "model asleep"
        self.emit_event(event, model=replica.name, to=to.value, seconds=round(sum(spent.values()), 3))
        self.request_plan()
        return True
