"""The sink engines write to: it knows which session each request belongs to, and counts and times for all engines alike."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from enginebay.contract import Engine, FinishReason, GenerateRequest, TokenLogprobs
from enginebay.contract.messages import Done, Energy, Timing, Usage
from enginebay.errors import EnginebayError, EngineFailed
from enginebay.worker.best_of import BestOf
from enginebay.worker.door import Door
from enginebay.worker.metering import Answer, Metering
from enginebay.worker.outbox import Outbox
from enginebay.worker.own_meter import find_meter, step_tokens

_log = logging.getLogger(__name__)


class _Live:
    """One request that has not ended."""

    __slots__ = (
        "best_of",
        "cached_tokens",
        "choices_left",
        "energy",
        "first",
        "number",
        "outbox",
        "prompt_tokens",
        "started",
        "tokens",
    )

    def __init__(self, number: int, outbox: Outbox, request: GenerateRequest) -> None:
        self.number = number
        self.outbox = outbox
        self.started = time.perf_counter()
        self.first = 0.0
        self.tokens = 0
        self.prompt_tokens = len(request.token_ids or ())
        self.cached_tokens = 0
        self.energy = request.energy
        self.best_of = BestOf.wanted(request.sampling)
        self.choices_left = request.sampling.best_of or request.sampling.n


class Ledger:
    """Requests by the engine's number. Implements `contract.Sink`; numbers are unique across sessions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._live: dict[int, _Live] = {}
        self._outboxes: tuple[Outbox, ...] = ()  # replaced, never changed: the engine's thread walks it without a lock
        self._next = 0
        self._lock = threading.Lock()  # guards numbering and the sessions, never the token path
        self._asking = threading.Lock()  # engines are told of requests and cancels by one thread at a time
        self.door = Door()
        self.first_token_s: float | None = None  # of the first request that got one, since this was last unset
        self.moved_at = 0.0  # when the engine last put something, on the monotonic clock
        self.flushes = 0
        self.tokens = 0
        self._metering: Metering | None = None  # while somebody asks for joules
        self._no_meter = ""  # why there are none to tell
        self._idle_w: float | None = None  # as far as was learned

    # What sessions call

    def open(self, send: Callable[[], None] = lambda: None) -> Outbox:
        """A new session; `send` is called, by any thread, when there is something in its outbox."""
        outbox = Outbox(send)
        with self._lock:
            self._outboxes = (*self._outboxes, outbox)
        return outbox

    def close(self, outbox: Outbox) -> None:
        """The session is over: what it still had running is cancelled."""
        with self._lock:
            self._outboxes = tuple(one for one in self._outboxes if one is not outbox)
        for live in list(self._live.values()):
            if live.outbox is outbox:
                self.cancel(outbox, live.number)
        outbox.close()

    def submit(self, number: int, outbox: Outbox, request: GenerateRequest) -> int:
        """Hand a request to the engine; gives back the engine's number for it. Every failure goes to the outbox."""
        with self._lock:
            self._next += 1
            own = self._next
        try:
            self.door.enter()
        except EnginebayError as error:
            outbox.failure(number, error)
            outbox.wake()
            return own
        live = _Live(number, outbox, request)
        self._live[own] = live
        outbox.own[number] = own
        if request.energy or self._metering is not None:
            self._meter(own, live)
        sampling = request.sampling
        if sampling.best_of is not None:
            ranked = sampling.logprobs or 0 if live.best_of else sampling.logprobs
            widened = replace(sampling, n=sampling.best_of, best_of=None, logprobs=ranked)
            request = replace(request, sampling=widened)
        try:
            with self._asking:
                self._engine.submit(own, request)
        except EnginebayError as error:
            self.error(own, error)
        except Exception as error:  # an engine's surprise must not end the session of everybody else
            _log.exception("the engine failed on a request")
            self.error(own, EngineFailed(f"the engine failed on this request: {type(error).__name__}: {error}"))
        return own

    def cancel(self, outbox: Outbox, number: int) -> None:
        """Forget a session's request; the engine frees its place within a step."""
        own = outbox.own.pop(number, None)
        if own is not None and self._live.pop(own, None) is not None:
            self._cancel(own)
            if (metering := self._metering) is not None:
                metering.drop(own)
            self.door.leave()

    def _meter(self, own: int, live: _Live) -> None:
        """Count the request's tokens, if anybody wants to know joules. The first who does starts it, for all who run."""
        with self._lock:
            before = self._metering
            if before is not None:
                if before.enter(own, live.prompt_tokens, asks=live.energy):
                    return
                self._metering, self._no_meter, self._idle_w = None, before.absent, before.idle_w
            if live.energy and not self._no_meter:
                metering = Metering(
                    lambda: find_meter(self._engine), self._idle_s, lambda: step_tokens(self._engine), self._idle_w
                )
                self._metering = metering
                running = list(self._live)
                for number in running:
                    metering.enter(number, live.prompt_tokens if number == own else 0, asks=number == own)
                for number in running:
                    if number not in self._live:  # it has ended meanwhile, and would never leave
                        metering.drop(number)

    def _idle_s(self) -> float:
        """For how long nothing has run on an engine that is awake."""
        return self.door.idle_s() if self.door.is_open else 0.0

    def _cancel(self, own: int) -> None:
        try:
            with self._asking:
                self._engine.cancel(own)
        except Exception:
            _log.exception("the engine failed to cancel a request")

    # What the engine calls

    def accepted(self, number: int, prompt_tokens: int, cached_tokens: int = 0) -> None:
        live = self._live.get(number)
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
        live = self._live.get(number)
        if live is None:
            return
        if not live.first:
            live.first = time.perf_counter()
            if self.first_token_s is None:
                self.first_token_s = live.first - live.started
            if (metering := self._metering) is not None:
                metering.count(number, live.prompt_tokens - live.cached_tokens)
        live.tokens += len(token_ids)
        if (metering := self._metering) is not None:
            metering.count(number, len(token_ids))
        row = (live.number, text, token_ids, choice, logprobs)
        if live.best_of is None:
            live.outbox.row(row)
        else:
            live.best_of.row(row, live.outbox)

    def finish(self, number: int, reason: FinishReason, choice: int = 0, stop_reason: str | int | None = None) -> None:
        live = self._live.get(number)
        if live is None:
            return
        if live.best_of is None:
            live.outbox.finish(live.number, choice, reason, stop_reason)
        else:
            live.best_of.finish(choice, reason, stop_reason)
        live.choices_left -= 1
        if live.choices_left == 0:
            self._end(number, live)

    def error(self, number: int, error: EnginebayError) -> None:
        live = self._live.pop(number, None)
        if live is not None:
            live.outbox.own.pop(live.number, None)
            live.outbox.failure(live.number, error)
            live.outbox.wake()
            if (metering := self._metering) is not None:
                metering.drop(number)
            self.door.leave()

    def usage(self, number: int, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> None:
        live = self._live.get(number)
        if live is not None:
            live.prompt_tokens, live.tokens, live.cached_tokens = prompt_tokens, completion_tokens, cached_tokens

    def flush(self, ends_step: bool = True) -> None:
        self.flushes += 1
        self.moved_at = time.monotonic()
        if ends_step and (metering := self._metering) is not None:
            metering.flush()
        for outbox in self._outboxes:
            outbox.wake()

    def _end(self, number: int, live: _Live) -> None:
        if self._live.pop(number, None) is None:
            return  # cancelled meanwhile
        live.outbox.own.pop(live.number, None)
        if live.best_of is not None:
            live.best_of.emit(live.number, live.outbox)
        now = time.perf_counter()
        self.tokens += live.tokens
        usage = Usage(live.prompt_tokens, live.tokens, live.cached_tokens)
        timing = Timing((live.first or now) - live.started, now - live.started)
        done = Done(usage, timing)
        metering = self._metering
        if metering is not None and not live.first:  # it ended at once, and had its prompt computed all the same
            metering.count(number, live.prompt_tokens - live.cached_tokens)
        if metering is not None and live.energy:
            metering.end(number, Answer(live.outbox, live.number, done, self.door.leave))
            return
        if metering is not None:
            metering.end(number)
        elif live.energy:
            done = replace(done, energy=Energy(absent=self._no_meter))
        live.outbox.done(live.number, done)
        self.door.leave()
