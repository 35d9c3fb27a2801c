"""Requests as the engine holds them, and which of them may start now. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from enginebay.engines.llamacpp.body import BodyMaker
from enginebay.engines.llamacpp.output import Output


@dataclass(eq=False, slots=True)
class Held:
    """A request the engine has taken and not ended."""

    number: int
    bodies: BodyMaker
    calls_left: int = 0
    accepted: bool = False
    cancelled: bool = False


@dataclass(eq=False, slots=True)
class Call:
    """What one thread does: one or more choices of one request, which start as one call of the library."""

    held: Held
    outputs: Sequence[Output]
    tokens: int  # the most cache it can come to need

    @property
    def slots(self) -> int:
        return len(self.outputs)


def group_sizes(n: int, together: bool, most: int) -> list[int]:
    """How the choices of a request are spread over calls: together as far as allowed, else one by one."""
    size = max(1, most) if together else 1
    return [min(size, n - start) for start in range(0, n, size)]


@dataclass(slots=True)
class Queue:
    """First come, first served, as far as slots and cache reach. The library itself never has to queue."""

    slots: int
    tokens: int
    waiting: deque[Call] = field(default_factory=deque)

    def put(self, call: Call) -> None:
        self.waiting.append(call)

    def startable(self) -> list[Call]:
        """Calls that may start now, in order; their slots and cache are taken."""
        found: list[Call] = []
        while self.waiting and self.waiting[0].slots <= self.slots and self.waiting[0].tokens <= self.tokens:
            call = self.waiting.popleft()
            self.slots -= call.slots
            self.tokens -= call.tokens
            found.append(call)
        return found

    def give_back(self, call: Call) -> None:
        self.slots += call.slots
        self.tokens += call.tokens

    def drop(self, held: Held) -> None:
        """Forget what has not started of a request."""
        self.waiting = deque(call for call in self.waiting if call.held is not held)
