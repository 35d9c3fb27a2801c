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
    adapter: str | None = None
    calls_left: int = 0
    accepted: bool = False
    cancelled: bool = False


@dataclass(eq=False, slots=True)
class Call:
    """What one thread does: one or more choices of one request, which start as one call of the library."""

    held: Held
    outputs: Sequence[Output]
    tokens: int  # the most cache it can come to need
    prompt: int = 0  # tokens
    computed: int = 0  # of the prompt, as the library last told

    @property
    def slots(self) -> int:
        return len(self.outputs)


def group_sizes(n: int, together: bool, most: int) -> list[int]:
    """How the choices of a request are spread over calls: together as far as allowed, else one by one."""
    size = max(1, most) if together else 1
    return [min(size, n - start) for start in range(0, n, size)]


@dataclass(slots=True)
class Queue:
    """First come, first served, as far as slots and cache reach. The library itself never has to queue.

    It computes one adapter at a time, and lets another's requests wait as long as there are more of the first: here they
    take turns, in the order in which they came.
    """

    slots: int
    tokens: int
    waiting: deque[Call] = field(default_factory=deque)
    running: set[Call] = field(default_factory=set)

    def put(self, call: Call) -> None:
        self.waiting.append(call)

    def startable(self) -> list[Call]:
        """Calls that may start now, in order; their slots and cache are taken."""
        found: list[Call] = []
        while self.waiting and self._fits(self.waiting[0]):
            call = self.waiting.popleft()
            self.slots -= call.slots
            self.tokens -= call.tokens
            self.running.add(call)
            found.append(call)
        return found

    def _fits(self, call: Call) -> bool:
        same = all(one.held.adapter == call.held.adapter for one in self.running)
        return same and call.slots <= self.slots and call.tokens <= self.tokens

    def give_back(self, call: Call) -> None:
        self.slots += call.slots
        self.tokens += call.tokens
        self.running.discard(call)

    def drop(self, held: Held) -> None:
        """Forget what has not started of a request."""
        self.waiting = deque(call for call in self.waiting if call.held is not held)

    def requests_waiting(self) -> int:
        """Requests of which nothing has started."""
        started = {call.held.number for call in self.running}
        return len({call.held.number for call in self.waiting} - started)

    def cached_tokens(self, shared: bool) -> int:
        """Tokens of running requests in the cache; where it is `shared`, the choices of a call have one prompt."""
        return sum(_cached(call, shared) for call in self.running)


def _cached(call: Call, shared: bool) -> int:
    going_on = [output for output in call.outputs if output.finish_reason is None]
    made = sum(output.count for output in going_on)
    if not made:
        return call.computed if going_on else 0  # the first choice computes the prompt for all
    return call.prompt * (1 if shared else len(going_on)) + made
