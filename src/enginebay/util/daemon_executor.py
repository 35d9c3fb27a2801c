"""One thread that does what it is given, in turn. Unlike an executor's, nobody waits for it when the process ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonExecutor:
    """For work that may never come back, such as a driver's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = False
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()

    async def run(self, work: Callable[[], T]) -> T:
        """Called off before its turn, it is not done."""
        done: Future[T] = Future()
        self._jobs.put((work, done))
        if not self._started:
            self._started = True
            threading.Thread(target=self._run_jobs, name=self._name, daemon=True).start()
        return await asyncio.wrap_future(done)

    def shutdown(self) -> None:
        """After what was given before."""
        self._jobs.put(None)

    def _run_jobs(self) -> None:
        while (given := self._jobs.get()) is not None:
            work, done = given
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)
