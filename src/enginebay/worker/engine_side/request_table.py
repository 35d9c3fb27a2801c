"""The sink engines write to: it knows which session each request belongs to, and counts and times for all engines alike."""

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
from enginebay.worker.engine_side.engine_meter import open_engine_meter, read_max_step_tokens
from enginebay.worker.engine_side.metering import Metering, PendingDone
from enginebay.worker.engine_side.output_queue import OutputQueue

_log = logging.getLogger(__name__)


class _ActiveRequest:
    """One request that has not ended."""

    __slots__ = (
        "best_of",
        "cached_tokens",
        "choices_left",
        "completion_tokens",
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
        self.completion_tokens = 0
        self.prompt_tokens = len(request.token_ids or ())
        self.cached_tokens = 0
        self.wants_energy = request.energy
        self.best_of = BestOf.from_sampling(request.sampling)
        self.choices_left = request.sampling.best_of or request.sampling.n


class RequestTable:
    """Requests by the engine's number. Implements `contract.Sink`; numbers are unique across sessions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._requests: dict[int, _ActiveRequest] = {}
        self._queues: tuple[
            OutputQueue, ...
        ] = ()  # replaced, never changed: the engine's thread walks it without a lock
        self._last_number = 0
        self._lock = threading.Lock()  # guards numbering and the sessions, never the token path
        self._engine_lock = threading.Lock()  # engines are told of requests and cancels by one thread at a time
        self.gate = DrainGate()
        self.first_token_s: float | None = None  # of the first request that got one, since this was last unset
        self.last_output_at = 0.0  # when the engine last put something, on the monotonic clock
        self.flushes = 0
        self.tokens = 0
        self._metering: Metering | None = None  # while somebody asks for joules
        self._meter_absent = ""  # why there are none to tell
        self._idle_w: float | None = None  # as far as was learned

    # What sessions call

    def open_queue(self, send: Callable[[], None] = lambda: None) -> OutputQueue:
        """A new session; `send` is called, by any thread, when there is something in its outbox."""
        outbox = OutputQueue(send)
        with self._lock:
            self._queues = (*self._queues, outbox)
        return outbox

    def close_queue(self, queue: OutputQueue) -> None:
        """The session is over: what it still had running is cancelled."""
        with self._lock:
            self._queues = tuple(one for one in self._queues if one is not queue)
        for live in list(self._requests.values()):
            if live.queue is queue:
                self.cancel(queue, live.number)
        queue.close()

    def submit(self, number: int, queue: OutputQueue, request: GenerateRequest) -> int:
        """Hand a request to the engine; gives back the engine's number for it. Every failure goes to the outbox."""
        with self._lock:
            self._last_number += 1
            own = self._last_number
        try:
            self.gate.enter()
        except EnginebayError as error:
            queue.put_failure(number, error)
            queue.flush()
            return own
        live = _ActiveRequest(number, queue, request)
        self._requests[own] = live
        queue.engine_numbers[number] = own
        if request.energy or self._metering is not None:
            self._add_to_metering(own, live)
        sampling = request.sampling
        if sampling.best_of is not None:
            ranked = sampling.logprobs or 0 if live.best_of else sampling.logprobs
            widened = replace(sampling, n=sampling.best_of, best_of=None, logprobs=ranked)
            request = replace(request, sampling=widened)
        try:
            with self._engine_lock:
                self._engine.submit(own, request)
        except EnginebayError as error:
            self.error(own, error)
        except Exception as error:  # an engine's surprise must not end the session of everybody else
            _log.exception("the engine failed on a request")
            self.error(own, EngineFailed(f"the engine failed on this request: {type(error).__name__}: {error}"))
        return own

    def cancel(self, queue: OutputQueue, number: int) -> None:
        """Forget a session's request; the engine frees its place within a step."""
        own = queue.engine_numbers.pop(number, None)
        if own is not None and self._requests.pop(own, None) is not None:
            self._cancel_in_engine(own)
            if (metering := self._metering) is not None:
                metering.drop_request(own)
            self.gate.leave()

    def _add_to_metering(self, engine_number: int, active: _ActiveRequest) -> None:
        """Count the request's tokens, if anybody wants to know joules. The first who does starts it, for all who run."""
        with self._lock:
            before = self._metering
            if before is not None:
                if before.add_request(engine_number, active.prompt_tokens, wants_energy=active.wants_energy):
                    return
                self._metering, self._meter_absent, self._idle_w = None, before.absent, before.idle_w
            if active.wants_energy and not self._meter_absent:
                metering = Metering(
                    lambda: open_engine_meter(self._engine),
                    self._measure_idle_s,
                    lambda: read_max_step_tokens(self._engine),
                    self._idle_w,
                )
                self._metering = metering
                running = list(self._requests)
                for number in running:
                    metering.add_request(
                        number,
                        active.prompt_tokens if number == engine_number else 0,
                        wants_energy=number == engine_number,
                    )
                for number in running:
                    if number not in self._requests:  # it has ended meanwhile, and would never leave
                        metering.drop_request(number)

    def _measure_idle_s(self) -> float:
        """For how long nothing has run on an engine that is awake."""
        return self.gate.measure_idle_s() if self.gate.is_open else 0.0

    def _cancel_in_engine(self, engine_number: int) -> None:
        try:
            with self._engine_lock:
                self._engine.cancel(engine_number)
        except Exception:
            _log.exception("the engine failed to cancel a request")

    # What the engine calls

    def accepted(self, number: int, prompt_tokens: int, cached_tokens: int = 0) -> None:
        live = self._requests.get(number)
        if live is not None:
            live.prompt_tokens = prompt_tokens
            live.cached_tokens = cached_tokens

    def token(
        self,
        number: int,
        text: str,
        token_ids: Sequence[int],
        choice: int = 0,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> None:
        live = self._requests.get(number)
        if live is None:
            return
        if not live.first_token_at:
            live.first_token_at = time.perf_counter()
            if self.first_token_s is None:
                self.first_token_s = live.first_token_at - live.started_at
            if (metering := self._metering) is not None:
                metering.count_tokens(number, live.prompt_tokens - live.cached_tokens)
        live.completion_tokens += len(token_ids)
        if (metering := self._metering) is not None:
            metering.count_tokens(number, len(token_ids))
        row = (live.number, text, token_ids, choice, logprobs)
        if live.best_of is None:
            live.queue.put_row(row)
        else:
            live.best_of.add_row(row, live.queue)

    def finish(self, number: int, reason: FinishReason, choice: int = 0, stop_reason: str | int | None = None) -> None:
        live = self._requests.get(number)
        if live is None:
            return
        if live.best_of is None:
            live.queue.put_finish(live.number, choice, reason, stop_reason)
        else:
            live.best_of.finish_choice(choice, reason, stop_reason)
        live.choices_left -= 1
        if live.choices_left == 0:
            self._finish_request(number, live)

    def error(self, number: int, error: EnginebayError) -> None:
        live = self._requests.pop(number, None)
        if live is not None:
            live.queue.engine_numbers.pop(live.number, None)
            live.queue.put_failure(live.number, error)
            live.queue.flush()
            if (metering := self._metering) is not None:
                metering.drop_request(number)
            self.gate.leave()

    def usage(self, number: int, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> None:
        live = self._requests.get(number)
        if live is not None:
            live.prompt_tokens, live.completion_tokens, live.cached_tokens = (
                prompt_tokens,
                completion_tokens,
                cached_tokens,
            )

    def flush(self, ends_step: bool = True) -> None:
        self.flushes += 1
        self.last_output_at = time.monotonic()
        if ends_step and (metering := self._metering) is not None:
            metering.end_step()
        for outbox in self._queues:
            outbox.flush()

    def _finish_request(self, number: int, active: _ActiveRequest) -> None:
        if self._requests.pop(number, None) is None:
            return  # cancelled meanwhile
        active.queue.engine_numbers.pop(active.number, None)
        if active.best_of is not None:
            active.best_of.emit(active.number, active.queue)
        now = time.perf_counter()
        self.tokens += active.completion_tokens
        usage = Usage(active.prompt_tokens, active.completion_tokens, active.cached_tokens)
        timing = Timing((active.first_token_at or now) - active.started_at, now - active.started_at)
        done = Done(usage, timing)
        metering = self._metering
        if (
            metering is not None and not active.first_token_at
        ):  # it ended at once, and had its prompt computed all the same
            metering.count_tokens(number, active.prompt_tokens - active.cached_tokens)
        if metering is not None and active.wants_energy:
            metering.finish_request(number, PendingDone(active.queue, active.number, done, self.gate.leave))
            return
        if metering is not None:
            metering.finish_request(number)
        elif active.wants_energy:
            done = replace(done, energy=Energy(absent=self._meter_absent))
        active.queue.put_done(active.number, done)
        self.gate.leave()
