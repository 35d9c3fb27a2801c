"""Decide the next step as late as possible, so that a request which has just come is in it.

On a GPU vLLM runs one step ahead: while a step computes, the next one is decided and handed to the device at once, and a
request that comes a moment later waits for that whole step too before its own begins. The device only needs the next step
when it has finished the one it is at. So vLLM's engine process waits here, and goes on taking in requests, until the running step
is expected to end less the time that deciding and handing over takes. The expectation is what steps of that many tokens took lately.

Like `stepwise.py` this leans on vLLM's inside and only runs where that is as expected. It works by what a forked process inherits.
"""

from __future__ import annotations

import inspect
from collections import deque
from queue import Empty
from time import monotonic
from typing import Any

from enginebay.engines.vllm.stepwise import TRIED, version_pair

_BUCKET = 64  # tokens; steps that differ by less take about as long
_KEPT = 16  # steps remembered of each size
_ENOUGH = 3  # steps of a size before it is relied on
# Of what steps took: a step that had to wait for its successor seems longer than it was, and must not teach us to wait longer.
_TRUSTED = 0.9
_SPARE_S = 0.001
_SHORTEST_S = 0.001  # waits below it are not worth the while
_WATCHED = "_enginebay_pace"


class Pace:
    """How long steps take on the device, and handing one over takes. Pure: the moments are given."""

    def __init__(self) -> None:
        self._steps: dict[int, deque[float]] = {}
        self._handing: deque[float] = deque(maxlen=_KEPT)
        self._began = self._ended = 0.0

    def began(self, now: float) -> None:
        """The next step is being decided."""
        self._began = now

    def handed(self, now: float) -> None:
        """The device has it."""
        self._handing.append(now - self._began)

    def ended(self, now: float, tokens: int, followed: bool) -> None:
        """The oldest step's results are here. `followed`: the device had another one to go on with."""
        if self._ended:
            self._steps.setdefault(tokens // _BUCKET, deque(maxlen=_KEPT)).append(now - self._ended)
        self._ended = now if followed else 0.0

    def wait_s(self, now: float, tokens: int) -> float:
        """How long the next decision may wait while a step of so many tokens computes; 0: not at all."""
        took = self._expected(tokens)
        if not self._ended or took is None or not self._handing:
            return 0.0
        left = self._ended + _TRUSTED * took - max(self._handing) - _SPARE_S - now
        return left if left >= _SHORTEST_S else 0.0

    def _expected(self, tokens: int) -> float | None:
        """The shortest of what steps as large, or the largest that are smaller, took lately: better early than late."""
        known = [size for size, took in self._steps.items() if size <= tokens // _BUCKET and len(took) >= _ENOUGH]
        return min(self._steps[max(known)]) if known else None


def why_not(core: Any, version: str) -> str | None:
    """Why this vLLM's steps cannot be decided late; None when they can."""
    if not TRIED[0] <= version_pair(version) <= TRIED[1]:
        return f"not tried with vllm {version}"
    for name in ("_process_input_queue", "step_with_batch_queue", "_handle_client_request"):
        method = getattr(core, name, None)
        if method is None or "self" not in inspect.signature(method).parameters:
            return f"vllm {version} has another {name}"
    return None


def install(core: Any) -> None:
    """Change vLLM's class of engine processes, for those that are forked from here on."""
    if hasattr(core, _WATCHED):
        return
    setattr(core, _WATCHED, True)
    take_in, step = core._process_input_queue, core.step_with_batch_queue

    def take_in_longer(self: Any) -> None:
        take_in(self)
        pace = self.__dict__.get(_WATCHED)
        while pace is not None and self.batch_queue:
            wait_s = pace.wait_s(monotonic(), _tokens(self.batch_queue[-1]))
            if not wait_s:
                return
            try:
                self._handle_client_request(*self.input_queue.get(timeout=wait_s))
            except Empty:
                return

    def step_and_watch(self: Any) -> Any:
        pace = self.__dict__.get(_WATCHED)
        if pace is None:
            pace = self.__dict__[_WATCHED] = Pace()
            _stamp(self.model_executor, pace)
        oldest = self.batch_queue[-1] if self.batch_queue else None
        pace.began(monotonic())
        outputs, executed = step(self)
        if outputs is not None and oldest is not None:
            pace.ended(monotonic(), _tokens(oldest), bool(self.batch_queue))
        return outputs, executed

    core._process_input_queue = take_in_longer
    core.step_with_batch_queue = step_and_watch


def _tokens(batch: Any) -> int:
    return int(batch[1].total_num_scheduled_tokens)


def _stamp(executor: Any, pace: Pace) -> None:
    sample = executor.sample_tokens

    def sample_and_stamp(*args: Any, **kwargs: Any) -> Any:
        future = sample(*args, **kwargs)
        pace.handed(monotonic())
        return future

    executor.sample_tokens = sample_and_stamp
