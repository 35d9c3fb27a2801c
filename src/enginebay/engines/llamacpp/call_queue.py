"""Queue of library calls: decides which may start, by free slots and cache. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from enginebay.engines.llamacpp.choice_output import ChoiceOutput
from enginebay.engines.llamacpp.request_body import LlamaBodyBuilder


@dataclass(eq=False, slots=True)
class ActiveRequest:
    """A submitted request that has not finished."""

    number: int
    body_builder: LlamaBodyBuilder
    adapter: str | None = None
    calls_left: int = 0
    accepted: bool = False
    cancelled: bool = False


@dataclass(eq=False, slots=True)
class LibraryCall:
    """One call of the library, run by one thread: one or more choices of one request."""

    request: ActiveRequest
    outputs: Sequence[ChoiceOutput]
    reserved_tokens: int  # upper bound of the cache it needs
    prompt_tokens: int = 0
    prefilled_tokens: int = 0  # as the library last reported

    @property
    def slots(self) -> int:
        return len(self.outputs)


def split_choices(n: int, together: bool, max_size: int) -> list[int]:
    """Return the number of choices in each call: up to `max_size` together if allowed, else one each."""
    size = max(1, max_size) if together else 1
    return [min(size, n - start) for start in range(0, n, size)]


@dataclass(slots=True)
class CallQueue:
    """Starts calls first come, first served while slots and cache last. The library itself never queues.

    The library computes one adapter at a time and would starve requests of another. Here adapters take turns in order
    of arrival.
    """

    free_slots: int
    free_tokens: int
    waiting: deque[LibraryCall] = field(default_factory=deque)
    running: set[LibraryCall] = field(default_factory=set)

    def put(self, call: LibraryCall) -> None:
        self.waiting.append(call)

    def admit(self) -> list[LibraryCall]:
        """Return the calls to start now, in order, and reserve their slots and cache."""
        admitted: list[LibraryCall] = []
        while self.waiting and self._fits(self.waiting[0]):
            call = self.waiting.popleft()
            self.free_slots -= call.slots
            self.free_tokens -= call.reserved_tokens
            self.running.add(call)
            admitted.append(call)
        return admitted

    def _fits(self, call: LibraryCall) -> bool:
        same = all(other.request.adapter == call.request.adapter for other in self.running)
        return same and call.slots <= self.free_slots and call.reserved_tokens <= self.free_tokens

    def release(self, call: LibraryCall) -> None:
        self.free_slots += call.slots
        self.free_tokens += call.reserved_tokens
        self.running.discard(call)

    def drop_waiting(self, request: ActiveRequest) -> None:
        """Remove the request's calls that have not started."""
        self.waiting = deque(call for call in self.waiting if call.request is not request)

    def count_waiting_requests(self) -> int:
        """Return the number of requests with no started call."""
        started = {call.request.number for call in self.running}
        return len({call.request.number for call in self.waiting} - started)

    def count_cached_tokens(self, shared: bool) -> int:
        """Return the tokens of running requests in the cache. In a `shared` cache the choices of a call share the prompt."""
        return sum(_count_cached_tokens(call, shared) for call in self.running)


def _count_cached_tokens(call: LibraryCall, shared: bool) -> int:
    unfinished = [output for output in call.outputs if output.finish_reason is None]
    generated = sum(output.count for output in unfinished)
    if not generated:
        return call.prefilled_tokens if unfinished else 0  # the first choice computes the prompt for all
    return call.prompt_tokens * (1 if shared else len(unfinished)) + generated
