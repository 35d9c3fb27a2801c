"""Queue of the requests that wait for a model to load."""

from __future__ import annotations

import asyncio
import itertools
import time

from enginebay.errors import EnginebayError
from enginebay.fleet.routing.model_client import ReplicaHandle
from enginebay.fleet.scheduling.planner import WaitingRequest


class WaitQueue:
    """In order of arrival. An entry without a future is a preload: no client waits for it."""

    def __init__(self) -> None:
        self._waits: dict[int, tuple[WaitingRequest, asyncio.Future[ReplicaHandle] | None]] = {}
        self._ids = itertools.count(1)

    def __len__(self) -> int:
        return len(self._waits)

    @property
    def client_count(self) -> int:
        return sum(1 for _, future in self._waits.values() if future is not None)

    def list_oldest_per_model(self) -> list[WaitingRequest]:
        """Return the oldest request of each model: the load order depends on no other."""
        oldest: dict[str, WaitingRequest] = {}
        for waiting, _ in self._waits.values():
            oldest.setdefault(waiting.model, waiting)
        return list(oldest.values())

    def list_all(self) -> list[WaitingRequest]:
        return [waiting for waiting, _ in self._waits.values()]

    def get_model(self, number: int) -> str:
        return self._waits[number][0].model

    def count_clients(self, name: str) -> int:
        return sum(1 for waiting, future in self._waits.values() if waiting.model == name and future is not None)

    def add(self, name: str, timeout_s: float) -> tuple[int, asyncio.Future[ReplicaHandle]]:
        now = time.monotonic()
        number = next(self._ids)
        future: asyncio.Future[ReplicaHandle] = asyncio.get_running_loop().create_future()
        self._waits[number] = (WaitingRequest(number, name, now, now + timeout_s), future)
        return number, future

    def add_preload(self, name: str, timeout_s: float) -> None:
        """Queue a load that no client waits for."""
        now = time.monotonic()
        if not self.has_preload(name):
            number = next(self._ids)
            self._waits[number] = (WaitingRequest(number, name, now, now + timeout_s), None)

    def remove(self, number: int) -> None:
        self._waits.pop(number, None)

    def reject(self, number: int, error: EnginebayError) -> None:
        _, future = self._waits.pop(number, (None, None))
        if future is not None and not future.done():
            future.set_exception(error)

    def has_preload(self, name: str) -> bool:
        return any(waiting.model == name and future is None for waiting, future in self._waits.values())

    def end_preload(self, name: str) -> None:
        self._waits = {
            number: (waiting, future)
            for number, (waiting, future) in self._waits.items()
            if waiting.model != name or future is not None
        }

    def resolve(self, name: str, handle: ReplicaHandle) -> int:
        """Give the handle to all waiting clients. Return their number."""
        futures = self._pop_futures(name)
        for future in futures:
            future.set_result(handle)
        return len(futures)

    def find_oldest_since(self, name: str) -> float | None:
        """Return when the oldest request for this model was queued, or None."""
        return min(
            (waiting.waiting_since for waiting, _ in self._waits.values() if waiting.model == name), default=None
        )

    def fail(self, name: str, error: EnginebayError) -> None:
        """Fail all waiting clients, and end a preload."""
        self.end_preload(name)
        for future in self._pop_futures(name):
            future.set_exception(error)

    def _pop_futures(self, name: str) -> list[asyncio.Future[ReplicaHandle]]:
        """Remove the entries of waiting clients. Return the futures that are still open."""
        numbers = [
            number for number, (waiting, future) in self._waits.items() if waiting.model == name and future is not None
        ]
        futures = [self._waits.pop(number)[1] for number in numbers]
        return [future for future in futures if future is not None and not future.done()]
