"""A replica: one copy of a variant on this host, with its state, its worker and its history."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace

from enginebay.contract import Facts
from enginebay.errors import CrashLoop, EnginebayError
from enginebay.fleet.lifecycle.crash_policy import CrashRecord
from enginebay.fleet.lifecycle.launch_plan import LaunchPlan
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.lifecycle.switch_history import Switch
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling.device_placement import GpuNeed, Placement, parse_pool, remap_pools
from enginebay.fleet.scheduling.planner import PoolBytes, ReplicaSnapshot, ReplicaState

_ARRIVAL_S = 2.0  # a request sent to a worker arrives within this time or never


@dataclass(slots=True, eq=False)
class Replica:
    """Only the fleet's event loop changes it."""

    variant: Variant
    observation_key: str  # key of its measurements
    awake_bytes: PoolBytes  # "gpu0" is its first GPU, wherever it is placed
    asleep_bytes: PoolBytes | None  # None: it never sleeps
    sleep_level: int = 0  # 0: sleep frees nothing
    number: int = 1  # among the replicas of its variant
    state: ReplicaState = ReplicaState.COLD
    in_transition: bool = False
    previous_state: ReplicaState | None = None  # during a transition
    draining: bool = False
    draining_since: float = 0.0
    worker: ModelWorker | None = None
    facts: Facts | None = None  # of the last worker
    running: int = 0
    accepted_requests: int = 0  # the worker's own count
    expected_requests: int = 0  # that count once every request sent to it has arrived
    expected_until: float = 0.0
    transition_since: float = 0.0
    memory_bytes: int = 0
    awake_since: float = 0.0
    idle_since: float = 0.0
    last_heard_at: float = 0.0  # last reply of the worker
    min_residency_s: float = 0.0
    time_to_ready_s: dict[ReplicaState, float] = field(default_factory=dict)  # estimated, by state
    idle_s: float | None = None  # before it is unloaded: the variant's, unless a request set another while it is loaded
    retry_at: float = 0.0  # no load before this time, after a failure
    crashes: list[CrashRecord] = field(default_factory=list)
    forgiven_addresses: deque[str] = field(default_factory=lambda: deque(maxlen=64))  # workers that a request killed
    oom_kills: int | None = None  # the host's count at the last healthy poll
    recovering: bool = False  # crashed while awake: reloads without a request
    load_error: EnginebayError | None = None
    last_failure: str = ""  # for `bay ps`
    last_switch: Switch | None = None
    reduced_plan: LaunchPlan | None = None  # replaces the variant's plan after an out-of-memory load
    updating: bool = False  # a rolling update owns it: no transitions
    placement: Placement | None = None  # its GPUs, while it has a worker
    placement_reason: str = ""

    @property
    def name(self) -> str:
        """The variant's name for the first replica, NAME#2 and so on for the others."""
        return self.variant.name if self.number == 1 else f"{self.variant.name}#{self.number}"

    @property
    def log_names(self) -> dict[str, str | None]:
        """Its variant, and its own name where the variant may have several, as fields of a log line."""
        return {"model": self.variant.name, "replica": self.name if self.variant.max_replicas > 1 else None}

    @property
    def is_pinned(self) -> bool:
        """Whether it is never evicted. Of a pinned model, replicas that only a high load needs can be."""
        return self.variant.settings.pinned and self.number <= max(1, self.variant.replica_policy.minimum)

    @property
    def remote(self) -> bool:
        """Whether a remote server computes: such a worker is never considered hung."""
        return self.variant.plan is not None and self.variant.plan.spec.remote

    @property
    def ready(self) -> bool:
        """Whether it accepts requests."""
        return (
            self.state is ReplicaState.AWAKE
            and not self.in_transition
            and not self.draining
            and self.worker is not None
        )

    def expect_requests(self, count: int) -> None:
        """Record that `count` requests are on their way to it."""
        self.expected_requests = max(self.expected_requests, self.accepted_requests) + count
        self.expected_until = time.monotonic() + _ARRIVAL_S

    @property
    def awaiting_arrivals(self) -> bool:
        """Whether requests it was loaded for have not arrived yet. False once it has been awake for a while."""
        now = time.monotonic()
        return now < self.awake_since + _ARRIVAL_S and self._count_unarrived(now) > 0

    def _count_unarrived(self, now: float) -> int:
        return max(0, self.expected_requests - self.accepted_requests) if now < self.expected_until else 0

    def _estimate_time_to_ready_s(self, now: float) -> float:
        """Estimate the seconds until it is awake; while it loads, the remaining ones."""
        if not self.in_transition:
            return self.time_to_ready_s.get(self.state, 0.0)
        total_s = self.time_to_ready_s.get(self.previous_state or ReplicaState.COLD, 0.0)
        return max(0.0, total_s - (now - self.transition_since)) if self.state is ReplicaState.AWAKE else total_s

    @property
    def gpus(self) -> Placement:
        """The host's GPUs that it computes on, while it is placed."""
        need = self.variant.gpu_need
        return () if need is None or self.placement is None else need.list_used(self.placement)

    @property
    def needed_bytes(self) -> PoolBytes:
        """The memory it needs awake, by pool of the host while it is placed."""
        return self.awake_bytes if self.placement is None else remap_pools(self.awake_bytes, self.placement)

    def place(self, placement: Placement | None, reason: str) -> None:
        self.placement, self.placement_reason = placement, reason if placement is not None else ""

    def take_snapshot(self) -> ReplicaSnapshot:
        now = time.monotonic()
        need = self.variant.gpu_need
        awake, asleep = _drop_gpus(self.awake_bytes), self.asleep_bytes
        if need is not None and self.placement is not None:
            awake |= need.to_pools(self.placement)
            asleep = None if asleep is None else self._place_asleep_bytes(asleep, need)
        elif asleep is not None:
            asleep = _drop_gpus(asleep)
        return ReplicaSnapshot(
            name=self.name,
            state=self.state,
            in_transition=self.in_transition,
            previous_state=self.previous_state,
            awake_bytes=awake,
            asleep_bytes=asleep,
            gpu_need=need,
            placement=self.placement,
            pinned=self.is_pinned or self.updating,
            awake_slots=0 if self.remote or self.number > 1 else 1,  # `max_awake` counts models
            running=max(self.running, self._count_unarrived(now)),
            awaiting_arrivals=self.awaiting_arrivals,
            draining=self.draining,
            awake_since=self.awake_since,
            idle_since=self.idle_since,
            idle_s=self.idle_s if self.variant.max_replicas == 1 else None,  # else see `replica_scaling`
            min_residency_s=self.min_residency_s,
            time_to_ready_s=self._estimate_time_to_ready_s(now),
            retry_at=self.retry_at,
            recovering=self.recovering,
        )

    def _place_asleep_bytes(self, asleep: PoolBytes, need: GpuNeed) -> PoolBytes:
        """Return what it holds asleep. Its GPUs are free for others then, unless sleep frees nothing."""
        assert self.placement is not None
        if not self.sleep_level:
            return {**_drop_gpus(asleep), **need.to_pools(self.placement)}
        return remap_pools(asleep, self.placement)

    def get_rejection(self) -> EnginebayError | None:
        """Return the error for requests until the next load attempt, or None."""
        if self.variant.error is not None:
            return self.variant.error
        left_s = self.retry_at - time.monotonic()
        if self.load_error is None or left_s <= 0:
            return None
        if isinstance(self.load_error, CrashLoop):
            self.load_error.retry_after_s = left_s
        return self.load_error

    def begin_transition(self, state: ReplicaState, placement: Placement | None = None, reason: str = "") -> None:
        """Begin a transition. A load has a placement, which a replica that only wakes already has."""
        if self.placement is None:
            self.place(placement, reason)
        self.previous_state, self.state, self.in_transition = self.state, state, True
        self.transition_since = time.monotonic()

    def cancel_transition(self) -> None:
        assert self.previous_state is not None
        self.state, self.in_transition, self.draining = self.previous_state, False, False

    def attach_worker(self, worker: ModelWorker, accepted_requests: int = 0) -> None:
        """Make a loaded worker serve this replica. `accepted_requests` is the worker's count so far."""
        now = time.monotonic()
        self.worker, self.facts = worker, worker.facts
        self.state, self.in_transition, self.draining = ReplicaState.AWAKE, False, False
        self.load_error = None
        self.running, self.accepted_requests, self.expected_requests = 0, accepted_requests, accepted_requests
        self.recovering = False
        self.memory_bytes = worker.facts.memory_bytes
        self.awake_since = self.idle_since = self.last_heard_at = now

    def name_worker(self) -> None:
        """Tell the users of its worker which replica it is, where there may be several."""
        if self.worker is not None:
            name = self.name if self.variant.max_replicas > 1 else ""
            self.worker.handle = replace(self.worker.handle, replica=name)

    def name_log(self, plan: LaunchPlan) -> LaunchPlan:
        """Return the plan with a log of its own for this replica."""
        log = plan.launch.log
        if self.number == 1 or log is None:
            return plan
        return replace(plan, launch=replace(plan.launch, log=log.with_name(f"{log.stem}#{self.number}{log.suffix}")))

    def reset_failures(self) -> None:
        self.crashes.clear()
        self.load_error, self.retry_at = None, 0.0

    def adopt_variant(self, fresh: Replica) -> None:
        """Take over the variant and estimates of a new replica. What was known of the old variant is dropped."""
        self.variant, self.idle_s = fresh.variant, fresh.idle_s
        self.observation_key = fresh.observation_key
        self.awake_bytes, self.asleep_bytes = fresh.awake_bytes, fresh.asleep_bytes
        self.time_to_ready_s, self.min_residency_s = fresh.time_to_ready_s, fresh.min_residency_s
        self.reduced_plan = self.facts = self.last_switch = None
        self.last_failure = ""
        self.reset_failures()

    def detach_worker(self) -> None:
        self.worker = None
        self.idle_s = self.variant.idle_s
        self.state, self.in_transition, self.draining = ReplicaState.COLD, False, False
        self.running = self.memory_bytes = 0
        self.place(None, "")


def _drop_gpus(pools: PoolBytes) -> dict[str, int]:
    return {pool: amount for pool, amount in pools.items() if parse_pool(pool) is None}
