"""Each request's share of the joules above idle. Pure: it hears of steps and of a meter's readings, and adds up.

- A step lasts from the end of the one before it, or from the moment work began, to the flush that ends it. Flushes that follow closely
  are one step: some engines flush after each token.
- A step's joules are divided by the tokens each request had in it: those it was given, and with its first one those of its prompt that
  were not cached. A prompt that is longer than one step takes is counted, as much as a step takes, in each step that began after it
  came, one such prompt at a time; the rest with its first token.
- Between two readings power is constant while requests run, and idle while none does.
- What no reading covers when a request ends is taken at the latest known power. What that is off by goes to those who were in the same
  steps and are still here: in the sum nothing is lost. A request of which less than half is covered waits for the next reading.
- What is drawn while no request runs belongs to nobody. It teaches the idle power.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

SETTLE_S = 0.5  # for so long after work a device draws more than idle
IDLE_LEARN_S = 1.0  # of idle readings make the idle power known
_IDLE_HISTORY_S = 10.0  # of idle readings count; older ones fade
_MERGE_SHARE = 0.25  # of the last step's length: a flush so soon after it belongs to it
_MERGE_LIMIT_S = 0.005  # but never later than this
_MIN_COVERAGE = 0.5


@dataclass(slots=True)
class _RequestEnergy:
    """One request."""

    entered_s: float
    joules: float = 0.0  # of steps that readings cover
    ended_s: float = 0.0
    prefilled_tokens: int = 0  # tokens of a long prompt that were counted before its first token


@dataclass(slots=True)
class _EngineStep:
    """One that readings do not yet cover to its end."""

    start_s: float
    end_s: float
    tokens: dict[int, int]  # of those that have not been told their joules
    tokens_left: int  # their sum
    joules: float  # by readings so far
    reported_j: float = 0.0

    def add(self, request: int, tokens: int) -> None:
        self.tokens[request] = self.tokens.get(request, 0) + tokens
        self.tokens_left += tokens


class EnergyAttribution:
    """Times are of one clock, joules those of a counter that only rises."""

    def __init__(self, max_step_tokens: int | None = None, idle_w: float | None = None) -> None:
        self.idle_w = idle_w  # with the engine loaded and nothing running; None: not known yet
        self.max_step_tokens = max_step_tokens  # what one step takes at most; None: any prompt
        self._requests: dict[int, _RequestEnergy] = {}
        self._awaiting_reading: dict[int, _RequestEnergy] = {}  # they have ended, and wait for a reading
        self._long_prompts: dict[int, int] = {}  # prompts of several steps that have no token yet, and their length
        self._steps: deque[_EngineStep] = deque()
        self._step_start_s: float | None = None  # when the step that is being computed began; None: nothing runs
        self._step_joules = 0.0  # its joules by readings so far
        self._last_reading: tuple[float, float] | None = None
        self._busy_w: float | None = None  # above idle, at the latest reading of work
        self._unassigned_j = (
            0.0  # measured when all who were there had been told theirs: the next step has it, or idleness
        )
        self._idle_j = self._idle_s = 0.0

    @property
    def empty(self) -> bool:
        return not self._requests and not self._awaiting_reading

    def get_entered_s(self, request: int) -> float | None:
        account = self._requests.get(request)
        return None if account is None else account.entered_s

    # Requests

    def add_request(self, request: int, time_s: float, prompt_tokens: int = 0) -> None:
        self._requests[request] = _RequestEnergy(time_s)
        if self._step_start_s is None:
            self._step_start_s, self._step_joules = time_s, 0.0
        if self.max_step_tokens and prompt_tokens > self.max_step_tokens:
            self._long_prompts[request] = prompt_tokens

    def record_step(self, end_s: float, tokens: dict[int, int]) -> None:
        """A step has ended; without tokens it goes on. `tokens` of a first token have its prompt in them."""
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
            self._steps.clear()  # nobody will be told

    def skip_step(self, end_s: float) -> None:
        """A step has ended of which nobody will be told, nor of those before it."""
        self._steps.clear()
        if self._step_start_s is not None:
            self._step_start_s, self._step_joules = end_s, 0.0

    def drop_uncovered_steps(self, before_s: float) -> bool:
        """Drop the steps that ended before then. If there are any, the next reading starts anew: what it adds was theirs, too."""
        if not self._steps or self._steps[0].end_s >= before_s:
            return False
        self._drop_steps(before_s)
        self._last_reading = None
        return True

    def finish_request(self, request: int, time_s: float) -> float | None:
        """What a request used, when its last step has ended. None: it must wait until `read` says it."""
        account = self._remove_request(request)
        if account is None:
            return 0.0
        read_s = self._last_reading[0] if self._last_reading else 0.0
        if self._busy_w is None or read_s - account.entered_s < _MIN_COVERAGE * (time_s - account.entered_s):
            account.ended_s = time_s
            self._awaiting_reading[request] = account
            return None
        return account.joules + sum(self._estimate_share(step, request, read_s, self._busy_w) for step in self._steps)

    def drop_request(self, request: int) -> None:
        """It was cancelled, or is told nothing: what it used stays its own."""
        self._remove_request(request)
        self._awaiting_reading.pop(request, None)

    def _remove_request(self, request: int) -> _RequestEnergy | None:
        self._long_prompts.pop(request, None)
        account = self._requests.pop(request, None)
        if not self._requests:
            self._step_start_s = None
        return account

    def _drop_steps(self, before_s: float) -> None:
        while self._steps and self._steps[0].end_s < before_s:
            self._steps.popleft()

    def _subtract_prefilled(self, request: int, tokens: int) -> int:
        if self._long_prompts.pop(request, None) is None:
            return tokens
        return max(tokens - self._requests[request].prefilled_tokens, 1)

    def _count_prefill(self, step: _EngineStep) -> None:
        """Prompts are computed in the order they came: of the first long one as much as a step takes."""
        for request, prompt_tokens in self._long_prompts.items():
            account, most = self._requests[request], self.max_step_tokens or 0
            if account.entered_s <= step.start_s and account.prefilled_tokens + most < prompt_tokens:
                account.prefilled_tokens += most
                step.add(request, most)
                return

    def _estimate_share(self, step: _EngineStep, request: int, read_s: float, busy_w: float) -> float:
        """A share of a step that is not covered yet."""
        tokens = step.tokens.pop(request, 0)
        if not tokens:
            return 0.0
        likely_j = step.joules + busy_w * max(step.end_s - max(step.start_s, read_s), 0.0)
        share_j = (likely_j - step.reported_j) * tokens / step.tokens_left
        step.tokens_left -= tokens
        step.reported_j += share_j
        return share_j

    # The meter

    def record_reading(self, time_s: float, joules: float, idle_s: float) -> dict[int, float]:
        """A reading; nothing had run for `idle_s` by then. Gives back what those used who waited for it."""
        before, self._last_reading = self._last_reading, (time_s, joules)
        if before is None:
            self._drop_steps(time_s)  # nobody knows what was drawn until now
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
        known = {request: one.joules for request, one in self._awaiting_reading.items() if one.ended_s <= time_s}
        for request in known:
            del self._awaiting_reading[request]
        return known

    def list_overdue(self, before_s: float) -> list[int]:
        """Who ended before then and still waits."""
        return [request for request, one in self._awaiting_reading.items() if one.ended_s < before_s]

    def _distribute(self, start_s: float, end_s: float, above_j: float) -> None:
        """Joules above idle go to the time at which something ran."""
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
            account = self._requests.get(request) or self._awaiting_reading.get(request)
            if account is not None:
                account.joules += left_j * tokens / step.tokens_left

    def _learn_idle_power(self, span_s: float, drawn_j: float) -> None:
        self._idle_j += drawn_j
        self._idle_s += span_s
        if self._idle_s >= IDLE_LEARN_S:
            self.idle_w = self._idle_j / self._idle_s
        if self._idle_s >= _IDLE_HISTORY_S:
            self._idle_j, self._idle_s = self._idle_j / 2, self._idle_s / 2


def _compute_overlap(start_s: float, end_s: float, from_s: float, to_s: float) -> float:
    return max(min(end_s, to_s) - max(start_s, from_s), 0.0)
