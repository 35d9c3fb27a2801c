"""Table of active requests. It is the sink engines write to: it routes output to streams, and counts and times it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from enginebay.contract import Engine, FinishReason, GenerateRequest, TokenLogprobs
from enginebay.contract.engine_messages import Done, Energy, Timing, Usage
from enginebay.errors import EnginebayError, EngineFailed
from enginebay.worker.engine_side.best_of import BestOf
from enginebay.worker.engine_side.drain_gate import DrainGate
from enginebay.worker.engine_side.engine_meter import open_engine_meter
from enginebay.worker.engine_side.metering import Metering, PendingDone
from enginebay.worker.engine_side.output_queue import OutputQueue

_log = logging.getLogger(__name__)


class _ActiveRequest:
    """One request that has not finished."""

    __slots__ = (
        "best_of",
        "cached_tokens",
        "choices_left",
        "completion_tokens",
        "continued_tokens",
        "first_token_at",
        "number",
        "prompt_tokens",
        "queue",
        "started_at",
        "wants_energy",
    )

    def __init__(self, number: int, queue: OutputQueue, request: GenerateRequest) -> None:
        self.number = number
        self.queue = queue
        self.started_at = time.perf_counter()
        self.first_token_at = 0.0
        self.continued_tokens = len(request.generated)  # generated elsewhere
        self.completion_tokens = self.continued_tokens
        self.prompt_tokens = len(request.token_ids or ())
        self.cached_tokens = 0
        self.wants_energy = request.energy
        self.best_of = BestOf.from_sampling(request.sampling)
        self.choices_left = request.sampling.best_of or request.sampling.n

    @property
    def computed_prompt_tokens(self) -> int:
        """Tokens to compute before the first new one."""
        return self.prompt_tokens + self.continued_tokens - self.cached_tokens


class RequestTable:
    """Requests by the engine's number, which is unique across streams. Implements `contract.Sink`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._requests: dict[int, _ActiveRequest] = {}
        # Replaced, never mutated: the engine's thread iterates over it without a lock.
        self._queues: tuple[OutputQueue, ...] = ()
        self._last_number = 0
        self._lock = threading.Lock()  # guards numbers and queues, never the token path
        self._engine_lock = threading.Lock()  # one thread at a time submits to or cancels in the engine
        self.gate = DrainGate()
        self.first_token_s: float | None = None  # of the first request since the last reset
        self.last_output_at = 0.0  # monotonic
        self.flushes = 0
        self.tokens = 0
        self._metering: Metering | None = None  # while requests ask for energy
        self._meter_absent = ""  # why there is no meter
        self._idle_w: float | None = None  # last known

    # Called by streams

    def open_queue(self, send: Callable[[], None] = lambda: None) -> OutputQueue:
        """Open the queue of a new stream. Any thread may call `send` when it has output."""
        queue = OutputQueue(send, self._requests.__len__)
        with self._lock:
            self._queues = (*self._queues, queue)
        return queue

    def close_queue(self, queue: OutputQueue) -> None:
        """Close a stream's queue and cancel its requests."""
        with self._lock:
            self._queues = tuple(other for other in self._queues if other is not queue)
        for active in list(self._requests.values()):
            if active.queue is queue:
                self.cancel(queue, active.number)
        queue.close()

    def submit(self, number: int, queue: OutputQueue, request: GenerateRequest) -> int:
        """Submit a request to the engine. Return the engine's number for it. Failures go to the queue."""
        with self._lock:
            self._last_number += 1
            engine_number = self._last_number
        try:
            self.gate.enter()
        except EnginebayError as error:
            queue.put_failure(number, error)
            queue.flush()
            return engine_number
        active = _ActiveRequest(number, queue, request)
        self._requests[engine_number] = active
        queue.engine_numbers[number] = engine_number
        if request.energy or self._metering is not None:
            self._add_to_metering(engine_number, active)
        sampling = request.sampling
        if sampling.best_of is not None:
            logprobs = sampling.logprobs or 0 if active.best_of else sampling.logprobs
            widened = replace(sampling, n=sampling.best_of, best_of=None, logprobs=logprobs)
            request = replace(request, sampling=widened)
        try:
            with self._engine_lock:
                self._engine.submit(engine_number, request)
        except EnginebayError as error:
            self.error(engine_number, error)
        except Exception as error:  # a bug in an engine must not end the stream of other requests
            _log.exception("the engine failed on a request")
            failure = EngineFailed(f"the engine failed on this request: {type(error).__name__}: {error}")
            self.error(engine_number, failure)
        return engine_number

    def cancel(self, queue: OutputQueue, number: int) -> None:
        """Cancel a request of a stream. The engine frees its slot within a step."""
        engine_number = queue.engine_numbers.pop(number, None)
        if engine_number is not None and self._requests.pop(engine_number, None) is not None:
            self._cancel_in_engine(engine_number)
            if (metering := self._metering) is not None:
                metering.drop_request(engine_number)
            self.gate.leave()

    def _add_to_metering(self, engine_number: int, active: _ActiveRequest) -> None:
        """Meter a request. The first one that asks for energy starts metering for all running requests."""
        with self._lock:
            before = self._metering
            if before is not None:
                if before.add_request(engine_number, active.computed_prompt_tokens, wants_energy=active.wants_energy):
                    return
                self._metering, self._meter_absent, self._idle_w = None, before.absent, before.idle_w
            if active.wants_energy and not self._meter_absent:
                metering = Metering(
                    lambda: open_engine_meter(self._engine),
                    self._measure_idle_s,
                    lambda: self._engine.facts().max_step_tokens,
                    self._idle_w,
                )
                self._metering = metering
                running = list(self._requests)
                for number in running:
                    metering.add_request(
                        number,
                        active.computed_prompt_tokens if number == engine_number else 0,
                        wants_energy=number == engine_number,
                    )
                for number in running:
                    if number not in self._requests:  # finished meanwhile
                        metering.drop_request(number)

    def _measure_idle_s(self) -> float:
        """Return how long the awake engine has been idle."""
        return self.gate.measure_idle_s() if self.gate.is_open else 0.0

    def _cancel_in_engine(self, engine_number: int) -> None:
        try:
            with self._engine_lock:
                self._engine.cancel(engine_number)
        except Exception:
            _log.exception("the engine failed to cancel a request")

    # Called by the engine

    def accepted(self, number: int, prompt_tokens: int, cached_tokens: int = 0) -> None:
        active = self._requests.get(number)
        if active is not None:
            if active.continued_tokens:  # the engine may count them as its prompt
                active.cached_tokens = min(cached_tokens, active.prompt_tokens)
            else:
                active.prompt_tokens, active.cached_tokens = prompt_tokens, cached_tokens

    def token(
        self,
        number: int,
        text: str,
        token_ids: Sequence[int],
        choice: int = 0,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> None:
        active = self._requests.get(number)
        if active is None:
            return
        if not active.first_token_at:
            active.first_token_at = time.perf_counter()
            if self.first_token_s is None:
                self.first_token_s = active.first_token_at - active.started_at
            if (metering := self._metering) is not None:
                metering.count_tokens(number, active.computed_prompt_tokens)
        active.completion_tokens += len(token_ids)
        if (metering := self._metering) is not None:
            metering.count_tokens(number, len(token_ids))
        row = (active.number, text, token_ids, choice, logprobs)
        if active.best_of is None:
            active.queue.put_row(row)
        else:
            active.best_of.add_row(row, active.queue)

    def finish(self, number: int, reason: FinishReason, choice: int = 0, stop_reason: str | int | None = None) -> None:
        active = self._requests.get(number)
        if active is None:
            return
        if active.best_of is None:
            active.queue.put_finish(active.number, choice, reason, stop_reason)
        else:
            active.best_of.finish_choice(choice, reason, stop_reason)
        active.choices_left -= 1
        if active.choices_left == 0:
            self._finish_request(number, active)

    def error(self, number: int, error: EnginebayError) -> None:
        active = self._requests.pop(number, None)
        if active is not None:
            active.queue.engine_numbers.pop(active.number, None)
            active.queue.put_failure(active.number, error)
            active.queue.flush()
            if (metering := self._metering) is not None:
                metering.drop_request(number)
            self.gate.leave()

    def usage(self, number: int, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> None:
        active = self._requests.get(number)
        if active is not None:
            active.prompt_tokens, active.cached_tokens = prompt_tokens, cached_tokens
            active.completion_tokens = completion_tokens

    def flush(self, ends_step: bool = True) -> None:
        self.flushes += 1
        self.last_output_at = time.monotonic()
        if ends_step and (metering := self._metering) is not None:
            metering.end_step()
        for queue in self._queues:
            queue.flush()

    def _finish_request(self, number: int, active: _ActiveRequest) -> None:
        if self._requests.pop(number, None) is None:
            return  # cancelled meanwhile
        active.queue.engine_numbers.pop(active.number, None)
        if active.best_of is not None:
            active.best_of.emit(active.number, active.queue)
        now = time.perf_counter()
        self.tokens += active.completion_tokens - active.continued_tokens
        usage = Usage(active.prompt_tokens, active.completion_tokens, active.cached_tokens)
        timing = Timing((active.first_token_at or now) - active.started_at, now - active.started_at)
        done = Done(usage, timing)
        metering = self._metering
        if metering is not None and not active.first_token_at:  # no token, but its prompt was computed
            metering.count_tokens(number, active.computed_prompt_tokens)
        if metering is not None and active.wants_energy:
            metering.finish_request(number, PendingDone(active.queue, active.number, done, self.gate.leave))
            return
        if metering is not None:
            metering.finish_request(number)
        elif active.wants_energy:
            done = replace(done, energy=Energy(absent=self._meter_absent))
        active.queue.put_done(active.number, done)
        self.gate.leave()
