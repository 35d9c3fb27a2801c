"""A single-thread executor whose daemon thread does not delay process exit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonExecutor:
    """Runs jobs in order on one daemon thread. For calls that may never return, such as a driver's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = False
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` after the jobs queued before it. A job cancelled before its turn does not run."""
        done: Future[T] = Future()
        self._jobs.put((work, done))
        if not self._started:
            self._started = True
            threading.Thread(target=self._run_jobs, name=self._name, daemon=True).start()
        return await asyncio.wrap_future(done)

    def shutdown(self) -> None:
        """Stop the thread once the queued jobs are done."""
        self._jobs.put(None)

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)
