"""Bounds how many requests a model runs at once and how many may queue for it."""

from __future__ import annotations

import asyncio
from collections import deque

from enginebay.errors import Overloaded
from enginebay.util.limit_errors import format_limit_hint


class AdmissionQueue:
    """A FIFO queue with limits on running and waiting requests."""

    def __init__(self, max_running: int, max_waiting: int, timeout_s: float) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._mean_duration_s = 1.0  # of recent requests, from start to end
        self.running = 0

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    @property
    def is_full(self) -> bool:
        return self.running >= self._max_running and self.waiting >= self._max_waiting

    def estimate_retry_after_s(self) -> float:
        """Estimate when the queue has a free slot, from recent request durations."""
        return self._mean_duration_s * (self.waiting + 1) / self._max_running

    def try_enter(self) -> bool:
        """Take a slot without waiting. Return False if none is free or others are waiting."""
        if self.running < self._max_running and not self._waiters:
            self.running += 1
            return True
        return False

    async def enter(self) -> None:
        """Wait for a slot. Raise `Overloaded` if the queue is full or the wait times out."""
        if self.try_enter():
            return
        if self.waiting >= self._max_waiting:
            raise Overloaded(
                f"{self.waiting} requests are already queued for this model",
                format_limit_hint("queue", "try again later"),
                retry_after_s=self.estimate_retry_after_s(),
            )
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(slot)
        try:
            async with asyncio.timeout(self._timeout_s):
                await slot
        except BaseException as error:
            if slot.done() and not slot.cancelled():
                self._admit_next()  # the slot was granted just as the wait ended
            elif slot in self._waiters:
                self._waiters.remove(slot)
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    f"the request timed out after {self._timeout_s:g} s in the queue",
                    format_limit_hint("queue_timeout_s", "try again later"),
                    retry_after_s=self.estimate_retry_after_s(),
                ) from None
            raise

    def leave(self, duration_s: float) -> None:
        """Release the slot of a request that finished `duration_s` after it entered."""
        self._mean_duration_s += 0.05 * (duration_s - self._mean_duration_s)
        self._admit_next()

    def _admit_next(self) -> None:
        while self._waiters:
            slot = self._waiters.popleft()
            if not slot.done():
                slot.set_result(None)  # the slot passes on: `running` is unchanged
                return
        self.running -= 1
