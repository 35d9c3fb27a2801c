"""One variant in the fleet: where it is, and what is known of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from enginebay.contract import Facts
from enginebay.errors import CrashLoop, EnginebayError
from enginebay.fleet.lifecycle.crash_policy import CrashRecord
from enginebay.fleet.lifecycle.launch_plan import LaunchPlan
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.lifecycle.switch_history import Switch
from enginebay.fleet.memory.memory_estimate import MemoryFacts
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling.planner import PoolBytes, ReplicaSnapshot, ReplicaState

_ARRIVAL_S = 2.0  # by then a request that was sent to a worker has reached it, or never will


@dataclass(slots=True, eq=False)
class Replica:
    """Changed by the fleet's event loop alone."""

    variant: Variant
    observation_key: str  # under which measurements are kept
    awake_bytes: PoolBytes
    asleep_bytes: PoolBytes | None  # None: it is never put to sleep
    memory_facts: MemoryFacts | None = None  # what the prediction was made from
    sleep_level: int = 0  # 0: the worker is kept as it is
    state: ReplicaState = ReplicaState.COLD
    in_transition: bool = False
    previous_state: ReplicaState | None = None  # while it moves
    draining: bool = False  # its door, by us
    draining_since: float = 0.0
    worker: ModelWorker | None = None
    facts: Facts | None = None  # of the last worker
    running: int = 0
    accepted_requests: int = 0  # that its worker has taken, by its own count
    expected_requests: int = 0  # what that count will be once all who were sent there have arrived
    expected_until: float = 0.0
    transition_since: float = 0.0
    memory_bytes: int = 0
    awake_since: float = 0.0
    idle_since: float = 0.0
    last_heard_at: float = 0.0  # when the worker last said anything
    min_residency_s: float = 0.0
    time_to_ready_s: dict[ReplicaState, float] = field(default_factory=dict)  # expected, from each depth
    idle_s: float | None = None
    retry_at: float = 0.0  # no new try before, after a failure
    crashes: list[CrashRecord] = field(default_factory=list)
    oom_kills: int | None = None  # the host's count when its worker was last seen well
    recovering: bool = False  # it was awake when it died: it is raised again although nobody asks for it
    load_error: EnginebayError | None = None  # why it is not started for now
    last_failure: str = ""  # in words, for whoever looks
    last_switch: Switch | None = None  # the last time it was raised
    reduced_plan: LaunchPlan | None = None  # instead of the variant's own, since memory did not suffice for that
    updating: bool = False  # another worker is being made for it: nobody may move it meanwhile

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def remote(self) -> bool:
        """What it computes is computed elsewhere, at a pace that is not ours to judge."""
        return self.variant.plan is not None and self.variant.plan.spec.remote

    @property
    def ready(self) -> bool:
        """Requests can be sent to it now."""
        return (
            self.state is ReplicaState.AWAKE
            and not self.in_transition
            and not self.draining
            and self.worker is not None
        )

    def expect_requests(self, count: int) -> None:
        """So many requests are being sent to it."""
        self.expected_requests = max(self.expected_requests, self.accepted_requests) + count
        self.expected_until = time.monotonic() + _ARRIVAL_S

    @property
    def awaiting_arrivals(self) -> bool:
        """Those it was raised for are not all there yet. Later on others may always be on their way, and nobody waits for them."""
        now = time.monotonic()
        return now < self.awake_since + _ARRIVAL_S and self._count_unarrived(now) > 0

    def _count_unarrived(self, now: float) -> int:
        return max(0, self.expected_requests - self.accepted_requests) if now < self.expected_until else 0

    def _estimate_time_to_ready_s(self, now: float) -> float:
        """From where it is to awake; what is left of it, when it is on its way."""
        if not self.in_transition:
            return self.time_to_ready_s.get(self.state, 0.0)
        whole_s = self.time_to_ready_s.get(self.previous_state or ReplicaState.COLD, 0.0)
        return max(0.0, whole_s - (now - self.transition_since)) if self.state is ReplicaState.AWAKE else whole_s

    def take_snapshot(self) -> ReplicaSnapshot:
        now = time.monotonic()
        return ReplicaSnapshot(
            name=self.name,
            state=self.state,
            in_transition=self.in_transition,
            previous_state=self.previous_state,
            awake_bytes=self.awake_bytes,
            asleep_bytes=self.asleep_bytes,
            pinned=self.variant.settings.pinned or self.updating,
            awake_slots=0 if self.remote else 1,
            running=max(self.running, self._count_unarrived(now)),
            awaiting_arrivals=self.awaiting_arrivals,
            draining=self.draining,
            awake_since=self.awake_since,
            idle_since=self.idle_since,
            idle_s=self.idle_s,
            min_residency_s=self.min_residency_s,
            time_to_ready_s=self._estimate_time_to_ready_s(now),
            retry_at=self.retry_at,
            recovering=self.recovering,
        )

    def get_rejection(self) -> EnginebayError | None:
        """What whoever asks for it is refused with, until it may be tried again."""
        if self.variant.error is not None:
            return self.variant.error
        left_s = self.retry_at - time.monotonic()
        if self.load_error is None or left_s <= 0:
            return None
        if isinstance(self.load_error, CrashLoop):
            self.load_error.retry_after_s = left_s
        return self.load_error

    def begin_transition(self, state: ReplicaState) -> None:
        self.previous_state, self.state, self.in_transition = self.state, state, True
        self.transition_since = time.monotonic()

    def cancel_transition(self) -> None:
        """The move is called off."""
        assert self.previous_state is not None
        self.state, self.in_transition, self.draining = self.previous_state, False, False

    def attach_worker(self, worker: ModelWorker, accepted_requests: int = 0) -> None:
        """A loaded worker takes this place, which has taken so many requests before: those on their way are told by its count."""
        now = time.monotonic()
        self.worker, self.facts = worker, worker.facts
        self.state, self.in_transition, self.draining = ReplicaState.AWAKE, False, False
        self.load_error = None
        self.running, self.accepted_requests, self.expected_requests = 0, accepted_requests, accepted_requests
        self.recovering = False
        self.memory_bytes = worker.facts.memory_bytes
        self.awake_since = self.idle_since = self.last_heard_at = now

    def detach_worker(self) -> None:
        self.worker = None
        self.state, self.in_transition, self.draining = ReplicaState.COLD, False, False
        self.running = self.memory_bytes = 0
