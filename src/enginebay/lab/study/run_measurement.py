"""What came out of the measured part of a run, before anything is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.lab.loadgen.sender_pool import LoadgenResult
from enginebay.lab.measures.parity import ParityAnswer
from enginebay.lab.study.server_facts import ServerFacts
from enginebay.lab.workload.workload_builder import Workload


@dataclass(frozen=True, slots=True)
class RunMeasurement:
    """Times are of the monotonic clock."""

    server_facts: ServerFacts
    workload: Workload  # as far as it was to be sent
    sent: LoadgenResult
    idle_window: tuple[float, float]  # a window with the engine loaded and nothing to do
    server_start_s: float | None = None  # that the server took to start; None: it ran already
    parity_answers: Sequence[ParityAnswer] = ()  # to the parity prompts
    server_request_s: float | None = None  # that requests were with the server while the load lasted, by its own count
    parity_error: str | None = None  # why there are no answers to the parity prompts that were sent

    @property
    def window(self) -> tuple[float, float]:
        return self.sent.zero, self.sent.zero + self.sent.window_s
