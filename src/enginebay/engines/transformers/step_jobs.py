"""Jobs that touch the model and run in the step thread, between steps."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field

from enginebay.errors import EnginebayError


@dataclass(slots=True, eq=False)
class StepJob:
    """A job. It waits until no request uses the adapter `after_adapter`."""

    action: Callable[[], None]
    after_adapter: str | None = None
    future: Future[None] = field(default_factory=Future)


class StepJobQueue:
    """Jobs in order. Used only by the step thread."""

    def __init__(self) -> None:
        self._waiting: list[StepJob] = []

    def add(self, job: StepJob) -> None:
        self._waiting.append(job)

    def run_ready(self, get_adapters_in_use: Callable[[], Collection[str | None]]) -> None:
        """Run all jobs that are ready."""
        if not self._waiting:
            return
        in_use = get_adapters_in_use()
        ready = [job for job in self._waiting if job.after_adapter is None or job.after_adapter not in in_use]
        self._waiting = [job for job in self._waiting if job not in ready]
        for job in ready:
            try:
                job.action()
            except Exception as error:
                job.future.set_exception(error)
            else:
                job.future.set_result(None)

    def fail_all(self, error: EnginebayError) -> None:
        for job in self._waiting:
            job.future.set_exception(error)
        self._waiting = []
