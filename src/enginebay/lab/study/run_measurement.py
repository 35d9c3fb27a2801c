"""The raw outcome of a run's measured part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.lab.loadgen.sender_pool import LoadgenResult
from enginebay.lab.measures.parity import ParityAnswer
from enginebay.lab.study.server_facts import ServerFacts
from enginebay.lab.workload.workload_builder import Workload


@dataclass(frozen=True, slots=True)
class RunMeasurement:
    """What one run measured. Times are on the monotonic clock."""

    server_facts: ServerFacts
    workload: Workload  # the part that was scheduled
    loadgen: LoadgenResult
    idle_window: tuple[float, float]  # the engine loaded and idle
    server_start_s: float | None = None  # how long the server took to start; None: it was already running
    parity_answers: Sequence[ParityAnswer] = ()
    server_request_s: float | None = None  # request-seconds in the window, by the server's own metrics
    parity_error: str | None = None  # why the parity prompts have no answers

    @property
    def window(self) -> tuple[float, float]:
        return self.loadgen.zero, self.loadgen.zero + self.loadgen.window_s
