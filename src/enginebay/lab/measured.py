"""What came out of the measured part of a run, before anything is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.lab.asking import ServerFacts
from enginebay.lab.client.launch import Fired
from enginebay.lab.parity import Answer
from enginebay.lab.workload.make import Workload


@dataclass(frozen=True, slots=True)
class Measured:
    """Times are of the monotonic clock."""

    facts: ServerFacts
    workload: Workload  # as far as it was to be sent
    fired: Fired
    idle: tuple[float, float]  # a window with the engine loaded and nothing to do
    start_s: float | None = None  # that the server took to start; None: it ran already
    answers: Sequence[Answer] = ()  # to the parity prompts
    server_s: float | None = None  # that requests were with the server while the load lasted, by its own count
    unanswered: str | None = None  # why there are no answers to the parity prompts that were sent

    @property
    def window(self) -> tuple[float, float]:
        return self.fired.zero, self.fired.zero + self.fired.window_s
