"""Work that touches the model and is no step: done by the thread that steps it, between two steps."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field

from enginebay.errors import EnginebayError


@dataclass(slots=True, eq=False)
class Job:
    """`after`: an adapter; the job waits until no request uses it."""

    do: Callable[[], None]
    after: str | None = None
    done: Future[None] = field(default_factory=Future)


class Jobs:
    """Jobs in order. Lives in the step thread."""

    def __init__(self) -> None:
        self._waiting: list[Job] = []

    def add(self, job: Job) -> None:
        self._waiting.append(job)

    def run(self, used: Callable[[], Collection[str | None]]) -> None:
        """All that can be done now. `used`: adapters of the requests that are held."""
        if not self._waiting:
            return
        in_use = used()
        ready = [job for job in self._waiting if job.after is None or job.after not in in_use]
        self._waiting = [job for job in self._waiting if job not in ready]
        for job in ready:
            try:
                job.do()
            except Exception as error:
                job.done.set_exception(error)
            else:
                job.done.set_result(None)

    def give_up(self, error: EnginebayError) -> None:
        for job in self._waiting:
            job.done.set_exception(error)
        self._waiting = []
