"""One variant in the fleet: where it is, and what is known of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from enginebay.contract import Facts
from enginebay.errors import CrashLoop, EnginebayError
from enginebay.fleet.model_worker import ModelWorker
from enginebay.fleet.needs import NeedFacts
from enginebay.fleet.plan import Plan
from enginebay.fleet.residency import Bytes, Depth, Holding
from enginebay.fleet.supervision import Died
from enginebay.fleet.switches import Switch
from enginebay.fleet.variants import Variant

_UNDER_WAY_S = 2.0  # by then a request that was sent to a worker has reached it, or never will


@dataclass(slots=True, eq=False)
class Place:
    """Changed by the fleet's event loop alone."""

    variant: Variant
    key: str  # under which measurements are kept
    awake: Bytes
    asleep: Bytes | None  # None: it is never put to sleep
    need: NeedFacts | None = None  # what the prediction was made from
    sleep_level: int = 0  # 0: the worker is kept as it is
    depth: Depth = Depth.COLD
    moving: bool = False
    came_from: Depth | None = None  # while it moves
    closed: bool = False  # its door, by us
    closed_since: float = 0.0
    worker: ModelWorker | None = None
    facts: Facts | None = None  # of the last worker
    running: int = 0
    requests: int = 0  # that its worker has taken, by its own count
    expected: int = 0  # what that count will be once all who were sent there have arrived
    expected_until: float = 0.0
    moving_since: float = 0.0
    memory_bytes: int = 0
    awake_since: float = 0.0
    idle_since: float = 0.0
    answered_at: float = 0.0  # when the worker last said anything
    min_residency_s: float = 0.0
    raise_s: dict[Depth, float] = field(default_factory=dict)  # expected, from each depth
    idle_s: float | None = None
    not_before: float = 0.0  # no new try before, after a failure
    deaths: list[Died] = field(default_factory=list)
    oom_kills: int | None = None  # the host's count when its worker was last seen well
    comes_back: bool = False  # it was awake when it died: it is raised again although nobody asks for it
    trouble: EnginebayError | None = None  # why it is not started for now
    last_failure: str = ""  # in words, for whoever looks
    switch: Switch | None = None  # the last time it was raised
    smaller: Plan | None = None  # instead of the variant's own, since memory did not suffice for that
    changing: bool = False  # another worker is being made for it: nobody may move it meanwhile

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
        return self.depth is Depth.AWAKE and not self.moving and not self.closed and self.worker is not None

    def hand(self, count: int) -> None:
        """So many requests are being sent to it."""
        self.expected = max(self.expected, self.requests) + count
        self.expected_until = time.monotonic() + _UNDER_WAY_S

    @property
    def arriving(self) -> bool:
        """Those it was raised for are not all there yet. Later on others may always be on their way, and nobody waits for them."""
        now = time.monotonic()
        return now < self.awake_since + _UNDER_WAY_S and self._on_the_way(now) > 0

    def _on_the_way(self, now: float) -> int:
        return max(0, self.expected - self.requests) if now < self.expected_until else 0

    def _raise_s(self, now: float) -> float:
        """From where it is to awake; what is left of it, when it is on its way."""
        if not self.moving:
            return self.raise_s.get(self.depth, 0.0)
        whole_s = self.raise_s.get(self.came_from or Depth.COLD, 0.0)
        return max(0.0, whole_s - (now - self.moving_since)) if self.depth is Depth.AWAKE else whole_s

    def holding(self) -> Holding:
        now = time.monotonic()
        return Holding(
            name=self.name,
            depth=self.depth,
            moving=self.moving,
            came_from=self.came_from,
            awake=self.awake,
            asleep=self.asleep,
            pinned=self.variant.settings.pinned or self.changing,
            slots=0 if self.remote else 1,
            running=max(self.running, self._on_the_way(now)),
            arriving=self.arriving,
            closed=self.closed,
            awake_since=self.awake_since,
            idle_since=self.idle_since,
            idle_s=self.idle_s,
            min_residency_s=self.min_residency_s,
            raise_s=self._raise_s(now),
            not_before=self.not_before,
            comes_back=self.comes_back,
        )

    def refusal(self) -> EnginebayError | None:
        """What whoever asks for it is refused with, until it may be tried again."""
        if self.variant.error is not None:
            return self.variant.error
        left_s = self.not_before - time.monotonic()
        if self.trouble is None or left_s <= 0:
            return None
        if isinstance(self.trouble, CrashLoop):
            self.trouble.retry_after_s = left_s
        return self.trouble

    def leave_for(self, depth: Depth) -> None:
        self.came_from, self.depth, self.moving = self.depth, depth, True
        self.moving_since = time.monotonic()

    def stay(self) -> None:
        """The move is called off."""
        assert self.came_from is not None
        self.depth, self.moving, self.closed = self.came_from, False, False

    def seat(self, worker: ModelWorker, requests: int = 0) -> None:
        """A loaded worker takes this place, which has taken so many requests before: those on their way are told by its count."""
        now = time.monotonic()
        self.worker, self.facts = worker, worker.facts
        self.depth, self.moving, self.closed = Depth.AWAKE, False, False
        self.trouble = None
        self.running, self.requests, self.expected = 0, requests, requests
        self.comes_back = False
        self.memory_bytes = worker.facts.memory_bytes
        self.awake_since = self.idle_since = self.answered_at = now

    def vacate(self) -> None:
        self.worker = None
        self.depth, self.moving, self.closed = Depth.COLD, False, False
        self.running = self.memory_bytes = 0
