"""Lets one suspect at a time run alone on a variant, whichever server process it came to."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from enginebay.errors import Overloaded

_MAX_HOLD_S = 10.0  # others wait at most this long for trials in a row,
_PAUSE_S = 20.0  # and then there are none for a while


class AdmissionHolder(Protocol):
    """A server process. Both calls may be repeated."""

    async def hold_admission(self, variant: str) -> None:
        """Admit no request to the variant, and wait until it runs none."""

    def release_admission(self, variant: str) -> None: ...


@dataclass(slots=True)
class _VariantTrials:
    active: str = ""  # its id; empty: nothing is held
    held_since: float = 0.0
    paused_until: float = 0.0
    waiting: deque[tuple[str, asyncio.Future[None]]] = field(default_factory=deque)


class TrialCoordinator:
    """Trials of one variant follow each other in order of arrival, and admit nobody in between.

    `begin` may fail or be cancelled, but `end` must follow it in any case. An `urgent` trial ignores the pause.
    """

    def __init__(
        self, list_processes: Callable[[], Sequence[AdmissionHolder]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._list_processes = list_processes
        self._clock = clock
        self._variants: dict[str, _VariantTrials] = {}

    async def begin(self, variant: str, trial: str, urgent: bool = False) -> None:
        """Wait for the trials before it, then until all processes hold the variant and run nothing on it."""
        trials, now = self._variants.setdefault(variant, _VariantTrials()), self._clock()
        if not urgent and now < trials.paused_until:
            raise Overloaded("too many trials in a row")
        if trials.active:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            trials.waiting.append((trial, turn))
            await turn
        else:
            trials.active, trials.held_since = trial, now
        await asyncio.gather(*(process.hold_admission(variant) for process in self._list_processes()))

    def end(self, variant: str, trial: str) -> None:
        trials = self._variants.get(variant, _VariantTrials())
        if trials.active != trial:
            trials.waiting = deque(entry for entry in trials.waiting if entry[0] != trial)
            return
        if self._clock() > trials.held_since + _MAX_HOLD_S:
            self._pause(trials)
        while trials.waiting:
            trials.active, turn = trials.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        trials.active = ""
        for process in self._list_processes():
            process.release_admission(variant)

    def _pause(self, trials: _VariantTrials) -> None:
        """Let the suspects that wait run in company, and those of the next moments, too."""
        trials.paused_until = self._clock() + _PAUSE_S
        for _, turn in trials.waiting:
            if not turn.done():
                turn.set_exception(Overloaded("too many trials in a row"))
        trials.waiting.clear()

    def end_all(self, pid: int) -> None:
        """End the trials of a server process that has exited."""
        for variant, trials in self._variants.items():
            for trial in (*(name for name, _ in trials.waiting), trials.active):
                if trial.startswith(f"{pid}:"):
                    self.end(variant, trial)
