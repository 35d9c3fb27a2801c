"""Requests as the engine holds them, and which of them may start now. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from enginebay.engines.llamacpp.choice_output import ChoiceOutput
from enginebay.engines.llamacpp.request_body import LlamaBodyBuilder


@dataclass(eq=False, slots=True)
class ActiveRequest:
    """A request the engine has taken and not ended."""

    number: int
    body_builder: LlamaBodyBuilder
    adapter: str | None = None
    calls_left: int = 0
    accepted: bool = False
    cancelled: bool = False


@dataclass(eq=False, slots=True)
class LibraryCall:
    """What one thread does: one or more choices of one request, which start as one call of the library."""

    request: ActiveRequest
    outputs: Sequence[ChoiceOutput]
    reserved_tokens: int  # the most cache it can come to need
    prompt_tokens: int = 0  # tokens
    prefilled_tokens: int = 0  # of the prompt, as the library last told

    @property
    def slots(self) -> int:
        return len(self.outputs)


def split_choices(n: int, together: bool, max_size: int) -> list[int]:
    """How the choices of a request are spread over calls: together as far as allowed, else one by one."""
    size = max(1, max_size) if together else 1
    return [min(size, n - start) for start in range(0, n, size)]


@dataclass(slots=True)
class CallQueue:
    """First come, first served, as far as slots and cache reach. The library itself never has to queue.

    It computes one adapter at a time, and lets another's requests wait as long as there are more of the first: here they
    take turns, in the order in which they came.
    """

    free_slots: int
    free_tokens: int
    waiting: deque[LibraryCall] = field(default_factory=deque)
    running: set[LibraryCall] = field(default_factory=set)

    def put(self, call: LibraryCall) -> None:
        self.waiting.append(call)

    def admit(self) -> list[LibraryCall]:
        """Calls that may start now, in order; their slots and cache are taken."""
        found: list[LibraryCall] = []
        while self.waiting and self._fits(self.waiting[0]):
            call = self.waiting.popleft()
            self.free_slots -= call.slots
            self.free_tokens -= call.reserved_tokens
            self.running.add(call)
            found.append(call)
        return found

    def _fits(self, call: LibraryCall) -> bool:
        same = all(one.request.adapter == call.request.adapter for one in self.running)
        return same and call.slots <= self.free_slots and call.reserved_tokens <= self.free_tokens

    def release(self, call: LibraryCall) -> None:
        self.free_slots += call.slots
        self.free_tokens += call.reserved_tokens
        self.running.discard(call)

    def drop_waiting(self, request: ActiveRequest) -> None:
        """Forget what has not started of a request."""
        self.waiting = deque(call for call in self.waiting if call.request is not request)

    def count_waiting_requests(self) -> int:
        """Requests of which nothing has started."""
        started = {call.request.number for call in self.running}
        return len({call.request.number for call in self.waiting} - started)

    def count_cached_tokens(self, shared: bool) -> int:
        """Tokens of running requests in the cache; where it is `shared`, the choices of a call have one prompt."""
        return sum(_count_cached_tokens(call, shared) for call in self.running)


def _count_cached_tokens(call: LibraryCall, shared: bool) -> int:
    going_on = [output for output in call.outputs if output.finish_reason is None]
    made = sum(output.count for output in going_on)
    if not made:
        return call.prefilled_tokens if going_on else 0  # the first choice computes the prompt for all
    return call.prompt_tokens * (1 if shared else len(going_on)) + made
