"""How many requests a model computes at once, and how many may wait for it."""

from __future__ import annotations

import asyncio
from collections import deque

from enginebay.errors import Overloaded
from enginebay.util.limit_errors import format_limit_hint


class AdmissionQueue:
    """First come, first served, with bounds on both the running and the waiting."""

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
        """When a place in the queue should be free again, by how long requests took lately."""
        return self._mean_duration_s * (self.waiting + 1) / self._max_running

    def try_enter(self) -> bool:
        """A place at once, if nobody has to be waited for."""
        if self.running < self._max_running and not self._waiters:
            self.running += 1
            return True
        return False

    async def enter(self) -> None:
        """Wait for a place. Raises `Overloaded` when too many wait already, or when it takes too long."""
        if self.try_enter():
            return
        if self.waiting >= self._max_waiting:
            raise Overloaded(
                f"{self.waiting} requests already wait for this model",
                format_limit_hint("queue", "try again later"),
                retry_after_s=self.estimate_retry_after_s(),
            )
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(place)
        try:
            async with asyncio.timeout(self._timeout_s):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self._admit_next()  # the place came at the very moment we stopped waiting for it
            elif place in self._waiters:
                self._waiters.remove(place)
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    f"the request waited {self._timeout_s:g} s and its turn has not come",
                    format_limit_hint("queue_timeout_s", "try again later"),
                    retry_after_s=self.estimate_retry_after_s(),
                ) from None
            raise

    def leave(self, duration_s: float) -> None:
        """A request is over, and took this long since it entered."""
        self._mean_duration_s += 0.05 * (duration_s - self._mean_duration_s)
        self._admit_next()

    def _admit_next(self) -> None:
        while self._waiters:
            place = self._waiters.popleft()
            if not place.done():
                place.set_result(None)  # the one that leaves hands its place over: `running` stays
                return
        self.running -= 1
