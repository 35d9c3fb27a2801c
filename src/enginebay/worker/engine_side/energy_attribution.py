"""Attributes the energy above idle to requests, from engine steps and meter readings. Pure.

- A step lasts from the end of the previous one, or the start of work, to the flush that ends it. Flushes in close
  succession are one step, because some engines flush after each token.
- A step's joules are divided by the tokens of each request in it: generated tokens, and with the first one the prompt
  tokens that were not cached. A prompt longer than one step counts in each step that began after it arrived, up to the
  maximum tokens per step, one such prompt at a time; the rest counts with its first token.
- Between two readings, power is constant while requests run and idle otherwise.
- A step that no reading covers when a request ends is charged at the latest known power. The error goes to the
  requests of the same steps that still run, so the sum is exact. A request less than half covered waits for the next
  reading.
- Energy drawn while no request runs is attributed to none. It determines the idle power.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

SETTLE_S = 0.5  # a device draws more than idle for this long after work
IDLE_LEARN_S = 1.0  # idle time needed to know the idle power
_IDLE_HISTORY_S = 10.0  # of idle readings; older ones decay
_MERGE_SHARE = 0.25  # a flush within this share of the last step's length belongs to that step
_MERGE_LIMIT_S = 0.005  # upper bound of it
_MIN_COVERAGE = 0.5


@dataclass(slots=True)
class _RequestEnergy:
    entered_s: float
    joules: float = 0.0  # of steps that readings cover
    ended_s: float = 0.0
    prefilled_tokens: int = 0  # of a long prompt, counted before its first token


@dataclass(slots=True)
class _EngineStep:
    """A step that readings do not fully cover yet."""

    start_s: float
    end_s: float
    tokens: dict[int, int]  # by request, of those without a result yet
    tokens_left: int  # their sum
    joules: float  # from readings so far
    reported_j: float = 0.0

    def add(self, request: int, tokens: int) -> None:
        self.tokens[request] = self.tokens.get(request, 0) + tokens
        self.tokens_left += tokens


class EnergyAttribution:
    """All times are from one clock; joules are from a monotonic counter."""

    def __init__(self, max_step_tokens: int | None = None, idle_w: float | None = None) -> None:
        self.idle_w = idle_w  # engine loaded, no requests; None: unknown
        self.max_step_tokens = max_step_tokens  # None: a step takes any prompt
        self._requests: dict[int, _RequestEnergy] = {}
        self._awaiting_reading: dict[int, _RequestEnergy] = {}  # finished
        self._long_prompts: dict[int, int] = {}  # tokens of multi-step prompts without a first token
        self._steps: deque[_EngineStep] = deque()
        self._step_start_s: float | None = None  # start of the current step; None: idle
        self._step_joules = 0.0  # of the current step, from readings so far
        self._last_reading: tuple[float, float] | None = None
        self._busy_w: float | None = None  # above idle, from the latest busy reading
        self._unassigned_j = 0.0  # left over when all requests of a step had results: goes to the next step
        self._idle_j = self._idle_s = 0.0

    @property
    def empty(self) -> bool:
        return not self._requests and not self._awaiting_reading

    def get_entered_s(self, request: int) -> float | None:
        energy = self._requests.get(request)
        return None if energy is None else energy.entered_s

    # Requests

    def add_request(self, request: int, time_s: float, prompt_tokens: int = 0) -> None:
        self._requests[request] = _RequestEnergy(time_s)
        if self._step_start_s is None:
            self._step_start_s, self._step_joules = time_s, 0.0
        if self.max_step_tokens and prompt_tokens > self.max_step_tokens:
            self._long_prompts[request] = prompt_tokens

    def record_step(self, end_s: float, tokens: dict[int, int]) -> None:
        """Record the end of a step; without tokens it continues. A first token's count includes its prompt."""
        known = {
            request: self._subtract_prefilled(request, n) for request, n in tokens.items() if request in self._requests
        }
        if not known or self._step_start_s is None:
            return
        last = self._steps[-1] if self._steps else None
        if last is not None and end_s - last.end_s <= min(_MERGE_SHARE * (last.end_s - last.start_s), _MERGE_LIMIT_S):
            last.end_s, last.joules = end_s, last.joules + self._step_joules
        else:
            last = _EngineStep(self._step_start_s, end_s, {}, 0, self._step_joules)
            self._steps.append(last)
            self._count_prefill(last)
        for request, count in known.items():
            last.add(request, count)
        self._step_start_s, self._step_joules = end_s, 0.0
        if self.idle_w is None:
            self._steps.clear()  # no results without the idle power

    def skip_step(self, end_s: float) -> None:
        """End a step and drop all steps so far: they get no results."""
        self._steps.clear()
        if self._step_start_s is not None:
            self._step_start_s, self._step_joules = end_s, 0.0

    def drop_uncovered_steps(self, before_s: float) -> bool:
        """Drop steps that ended before `before_s`. Return whether there were any; then the next reading starts afresh."""
        if not self._steps or self._steps[0].end_s >= before_s:
            return False
        self._drop_steps(before_s)
        self._last_reading = None
        return True

    def finish_request(self, request: int, time_s: float) -> float | None:
        """Return the joules of a request after its last step. None: `record_reading` returns them later."""
        energy = self._remove_request(request)
        if energy is None:
            return 0.0
        read_s = self._last_reading[0] if self._last_reading else 0.0
        if self._busy_w is None or read_s - energy.entered_s < _MIN_COVERAGE * (time_s - energy.entered_s):
            energy.ended_s = time_s
            self._awaiting_reading[request] = energy
            return None
        return energy.joules + sum(self._estimate_share(step, request, read_s, self._busy_w) for step in self._steps)

    def drop_request(self, request: int) -> None:
        """Remove a request without a result. Its energy is not given to others."""
        self._remove_request(request)
        self._awaiting_reading.pop(request, None)

    def _remove_request(self, request: int) -> _RequestEnergy | None:
        self._long_prompts.pop(request, None)
        energy = self._requests.pop(request, None)
        if not self._requests:
            self._step_start_s = None
        return energy

    def _drop_steps(self, before_s: float) -> None:
        while self._steps and self._steps[0].end_s < before_s:
            self._steps.popleft()

    def _subtract_prefilled(self, request: int, tokens: int) -> int:
        if self._long_prompts.pop(request, None) is None:
            return tokens
        return max(tokens - self._requests[request].prefilled_tokens, 1)

    def _count_prefill(self, step: _EngineStep) -> None:
        """Count one chunk of the first long prompt: engines compute prompts in order of arrival."""
        for request, prompt_tokens in self._long_prompts.items():
            energy, chunk = self._requests[request], self.max_step_tokens or 0
            if energy.entered_s <= step.start_s and energy.prefilled_tokens + chunk < prompt_tokens:
                energy.prefilled_tokens += chunk
                step.add(request, chunk)
                return

    def _estimate_share(self, step: _EngineStep, request: int, read_s: float, busy_w: float) -> float:
        """Estimate a request's share of a step that is not fully covered."""
        tokens = step.tokens.pop(request, 0)
        if not tokens:
            return 0.0
        estimated_j = step.joules + busy_w * max(step.end_s - max(step.start_s, read_s), 0.0)
        share_j = (estimated_j - step.reported_j) * tokens / step.tokens_left
        step.tokens_left -= tokens
        step.reported_j += share_j
        return share_j

    # Meter

    def record_reading(self, time_s: float, joules: float, idle_s: float) -> dict[int, float]:
        """Record a reading, taken after `idle_s` without requests. Return the joules of requests that waited for it."""
        before, self._last_reading = self._last_reading, (time_s, joules)
        if before is None:
            self._drop_steps(time_s)  # no reading covers them
            return {}
        if time_s <= before[0]:
            return {}
        span_s, drawn_j = time_s - before[0], joules - before[1]
        if self.idle_w is not None:
            self._distribute(before[0], time_s, drawn_j - self.idle_w * span_s)
            while self._steps and self._steps[0].end_s <= time_s:
                self._attribute_step(self._steps.popleft())
        if idle_s >= span_s + SETTLE_S:
            self._learn_idle_power(span_s, drawn_j)
        known = {
            request: energy.joules for request, energy in self._awaiting_reading.items() if energy.ended_s <= time_s
        }
        for request in known:
            del self._awaiting_reading[request]
        return known

    def list_overdue(self, before_s: float) -> list[int]:
        """Return the requests that finished before `before_s` and still wait for a reading."""
        return [request for request, energy in self._awaiting_reading.items() if energy.ended_s < before_s]

    def _distribute(self, start_s: float, end_s: float, above_j: float) -> None:
        """Distribute joules above idle over the busy time."""
        busy_s = sum(self._list_overlaps(start_s, end_s))
        if busy_s <= 0:
            self._unassigned_j = 0.0
            return
        rate_w = above_j / busy_s
        for step in self._steps:
            step.joules += rate_w * _compute_overlap(step.start_s, step.end_s, start_s, end_s)
        if self._step_start_s is not None:
            self._step_joules += rate_w * _compute_overlap(self._step_start_s, end_s, start_s, end_s)
        if busy_s >= _MIN_COVERAGE * (end_s - start_s):
            self._busy_w = rate_w

    def _list_overlaps(self, start_s: float, end_s: float) -> Iterable[float]:
        for step in self._steps:
            yield _compute_overlap(step.start_s, step.end_s, start_s, end_s)
        if self._step_start_s is not None:
            yield _compute_overlap(self._step_start_s, end_s, start_s, end_s)

    def _attribute_step(self, step: _EngineStep) -> None:
        left_j = step.joules - step.reported_j + self._unassigned_j
        if not step.tokens_left:
            self._unassigned_j = left_j
            return
        self._unassigned_j = 0.0
        for request, tokens in step.tokens.items():
            energy = self._requests.get(request) or self._awaiting_reading.get(request)
            if energy is not None:
                energy.joules += left_j * tokens / step.tokens_left

    def _learn_idle_power(self, span_s: float, drawn_j: float) -> None:
        self._idle_j += drawn_j
        self._idle_s += span_s
        if self._idle_s >= IDLE_LEARN_S:
            self.idle_w = self._idle_j / self._idle_s
        if self._idle_s >= _IDLE_HISTORY_S:
            self._idle_j, self._idle_s = self._idle_j / 2, self._idle_s / 2


def _compute_overlap(start_s: float, end_s: float, from_s: float, to_s: float) -> float:
    return max(min(end_s, to_s) - max(start_s, from_s), 0.0)
