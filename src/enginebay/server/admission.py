"""How many requests a model computes at once, and how many may wait for it."""

from __future__ import annotations

import asyncio
from collections import deque

from enginebay.errors import Overloaded
from enginebay.server.limit_words import limit_hint


class Gate:
    """First come, first served, with bounds on both the running and the waiting."""

    def __init__(self, running: int, queue: int, timeout_s: float) -> None:
        self._most_running = running
        self._most_waiting = queue
        self._timeout_s = timeout_s
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._mean_s = 1.0  # of recent requests, from start to end
        self.running = 0

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    @property
    def full(self) -> bool:
        return self.running >= self._most_running and self.waiting >= self._most_waiting

    def retry_after_s(self) -> float:
        """When a place in the queue should be free again, by how long requests took lately."""
        return self._mean_s * (self.waiting + 1) / self._most_running

    def enter_now(self) -> bool:
        """A place at once, if nobody has to be waited for."""
        if self.running < self._most_running and not self._waiters:
            self.running += 1
            return True
        return False

    async def enter(self) -> None:
        """Wait for a place. Raises `Overloaded` when too many wait already, or when it takes too long."""
        if self.enter_now():
            return
        if self.waiting >= self._most_waiting:
            raise Overloaded(
                f"{self.waiting} requests already wait for this model",
                limit_hint("queue", "try again later"),
                retry_after_s=self.retry_after_s(),
            )
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(place)
        try:
            async with asyncio.timeout(self._timeout_s):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self._pass_on()  # the place came at the very moment we stopped waiting for it
            elif place in self._waiters:
                self._waiters.remove(place)
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    f"the request waited {self._timeout_s:g} s and its turn has not come",
                    limit_hint("queue_timeout_s", "try again later"),
                    retry_after_s=self.retry_after_s(),
                ) from None
            raise

    def leave(self, took_s: float) -> None:
        """A request is over, and took this long since it entered."""
        self._mean_s += 0.05 * (took_s - self._mean_s)
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiters:
            place = self._waiters.popleft()
            if not place.done():
                place.set_result(None)  # the one that leaves hands its place over: `running` stays
                return
        self.running -= 1
