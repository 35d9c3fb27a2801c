"""Lets one suspect at a time run alone on a variant, whichever server process it came to."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from enginebay.errors import Overloaded

_MAX_HOLD_S = 10.0  # others wait about this long for trials,
_WINDOW_S = 30.0  # in any such time


class AdmissionHolder(Protocol):
    """A server process. Both calls may be repeated."""

    async def hold_admission(self, variant: str, address: str = "") -> None:
        """Send no request to the worker at this address, or to none if it is the only one. Wait until it is idle."""

    def release_admission(self, variant: str) -> None: ...


class _WaitingTrial(NamedTuple):
    id: str
    turn: asyncio.Future[None]
    urgent: bool


@dataclass(slots=True)
class _VariantTrials:
    active: str = ""  # its id; empty: nothing is held
    held_since: float = 0.0
    holds: deque[tuple[float, float]] = field(default_factory=deque)  # before: from, to
    waiting: deque[_WaitingTrial] = field(default_factory=deque)

    def measure_held_s(self, now: float) -> float:
        """Return how long others had to wait in the last `_WINDOW_S`."""
        start = now - _WINDOW_S
        while self.holds and self.holds[0][1] <= start:
            self.holds.popleft()
        held_s = sum(end - max(begin, start) for begin, end in self.holds)
        return held_s + (now - max(self.held_since, start) if self.active else 0.0)


class TrialCoordinator:
    """Trials of one variant follow each other in order of arrival, and admit nobody in between.

    `begin` may fail or be cancelled, but `end` must follow it in any case. An `urgent` trial may hold for longer.
    """

    def __init__(
        self, list_processes: Callable[[], Sequence[AdmissionHolder]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._list_processes = list_processes
        self._clock = clock
        self._variants: dict[str, _VariantTrials] = {}

    async def begin(self, variant: str, trial: str, urgent: bool = False, address: str = "") -> None:
        """Wait for the trials before it, then until no process runs anything on the worker at this address.

        If it is the variant's only worker, others wait meanwhile; else they use the other replicas.
        """
        trials, now = self._variants.setdefault(variant, _VariantTrials()), self._clock()
        if not urgent and trials.measure_held_s(now) > _MAX_HOLD_S:
            raise Overloaded("too many trials")
        if trials.active:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            trials.waiting.append(_WaitingTrial(trial, turn, urgent))
            await turn
        else:
            trials.active, trials.held_since = trial, now
        await asyncio.gather(*(process.hold_admission(variant, address) for process in self._list_processes()))

    def end(self, variant: str, trial: str) -> None:
        trials = self._variants.get(variant, _VariantTrials())
        if trials.active != trial:
            trials.waiting = deque(entry for entry in trials.waiting if entry.id != trial)
            return
        now = self._clock()
        if trials.measure_held_s(now) > _MAX_HOLD_S:
            _drop_waiting(trials)
        while trials.waiting:
            following = trials.waiting.popleft()
            trials.active = following.id
            if not following.turn.done():
                following.turn.set_result(None)
                return
        trials.active = ""
        trials.holds.append((trials.held_since, now))
        for process in self._list_processes():
            process.release_admission(variant)

    def end_all(self, pid: int) -> None:
        """End the trials of a server process that has exited."""
        for variant, trials in self._variants.items():
            for trial in (*(entry.id for entry in trials.waiting), trials.active):
                if trial.startswith(f"{pid}:"):
                    self.end(variant, trial)


def _drop_waiting(trials: _VariantTrials) -> None:
    """Let the suspects that wait run in company."""
    for entry in trials.waiting:
        if not entry.urgent and not entry.turn.done():
            entry.turn.set_exception(Overloaded("too many trials"))
    trials.waiting = deque(entry for entry in trials.waiting if entry.urgent)
