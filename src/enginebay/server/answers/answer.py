"""The life of one answer, whatever its form: submitted, timed, finished, failed or cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from enginebay.contract import Delta, GenerateRequest
from enginebay.contract.messages import Done, Energy, Timing, Usage
from enginebay.errors import Cancelled, EnginebayError, TimedOut
from enginebay.server.answers.choice import Times
from enginebay.server.answers.estimates import answer_tokens, prompt_tokens
from enginebay.server.failures import error_body, error_headers, shown
from enginebay.server.http.exchange import Exchange
from enginebay.server.served import ServedModel
from enginebay.worker.client import WorkerClient


class Answer:
    """Listens to the engine for one HTTP request, which may be several requests to the engine: one for each prompt.

    Subclasses say what is done with tokens (`token`, `delta`), with all that one flush brought (`pump`), at the end
    (`complete`) and with an error (`fail`, once something was sent). `over` is done when there is nothing more to come,
    with the error if any. While it is `untouched` an error is for whoever runs it: there may be another try.
    """

    def __init__(self, exchange: Exchange, served: ServedModel) -> None:
        self.exchange = exchange
        self.served = served
        self.over: asyncio.Future[EnginebayError | None] = asyncio.get_running_loop().create_future()
        self.usage = Usage()
        self.energy: Energy | None = None  # where it is asked for
        self.finish_reason = ""  # of the choice that ended last
        self.submitted_at = 0.0
        self.first_at = 0.0
        self._last_at = 0.0
        self._timing: Timing | None = None  # by the worker's clock
        self._client: WorkerClient | None = None
        self._numbers: list[int] = []
        self._left = 0
        self._fresh = 0  # tokens since the last flush
        self._made = 0  # tokens before that
        self._begun = {0}  # choices that have brought something; most answers have but this one
        self._ended = 0  # choices that have ended
        self._ended_before = 0  # those that had when the last flush came
        self._untold = self._letters = 0  # pieces without token ids, as of text from elsewhere, and how long they were
        self._requests: Sequence[GenerateRequest] = ()

    def submit(self, client: WorkerClient, requests: Sequence[GenerateRequest]) -> None:
        self._client = client
        self._left = len(requests)
        self._requests = requests
        self.submitted_at = self._last_at = time.perf_counter()
        self.exchange.on_close = self.cancel
        choices = requests[0].sampling.n
        for place, request in enumerate(requests):
            listener = self if len(requests) == 1 else _Part(self, place * choices)
            self._numbers.append(client.submit(request, listener))

    def cancel(self) -> None:
        """The client has gone: the engine's place is freed within a step."""
        self._end(Cancelled("the client closed the connection"))

    def stop(self, error: EnginebayError) -> None:
        """End it from our side, and say why."""
        if not self.over.done():
            if not self.untouched:
                self.fail(error)
            self._end(error)

    def abandon(self, error: EnginebayError) -> None:
        """Whoever waited for `over` was cancelled, and `over` with it."""
        if self.untouched and not self.exchange.started:
            self.exchange.respond(shown(error).status, error_body(error), headers=error_headers(error))
        else:
            self.fail(error)
        self._free(error)

    def _end(self, error: EnginebayError | None) -> None:
        if self.over.done():
            return
        self.over.set_result(error)
        if error is not None:
            self._free(error)

    def _free(self, error: EnginebayError) -> None:
        """Take the requests back from the engine. What they had cost until then is counted by us."""
        made = max(self._made + self._fresh, answer_tokens(self._untold, self._letters))
        read = made or isinstance(error, (Cancelled, TimedOut))  # else a server elsewhere may never have got them
        counted = [request for request in self._requests if read or request.token_ids is not None]
        self.usage = Usage(sum(map(prompt_tokens, counted)), made, self.usage.cached_tokens)
        if self._client is not None:
            for number in self._numbers:
                self._client.cancel(number)

    def _count(self, delta: Delta) -> None:
        """For times and costs; a plain token adds to `_fresh` by itself."""
        self._fresh += len(delta.token_ids)
        self._begun.add(delta.choice)
        if delta.finish_reason is not None:
            self._ended += 1
        elif not delta.token_ids:
            self._untold += 1
            self._letters += len(delta.text)

    # What the worker's client calls

    def token(self, text: str, token_id: int) -> None:
        raise NotImplementedError

    def delta(self, delta: Delta) -> None:
        raise NotImplementedError

    def flushed(self) -> None:
        if not self.over.done():
            self._tick()
            self.pump()

    def done(self, done: Done) -> None:
        if self.over.done():
            return
        known, new = self.usage, done.usage
        self.usage = Usage(
            known.prompt_tokens + new.prompt_tokens,
            known.completion_tokens + new.completion_tokens,
            known.cached_tokens + new.cached_tokens,
        )
        self._timing = done.timing if self._timing is None else _together(self._timing, done.timing)
        self.energy = done.energy if self.energy is None else _sum(self.energy, done.energy)
        self._left -= 1
        if self._left == 0:
            self._tick()
            self.complete()
            self._end(None)

    def failed(self, error: EnginebayError) -> None:
        self.stop(error)

    def _tick(self) -> None:
        """Time what has come since the last flush. Its tokens are those of all choices that run side by side."""
        fresh, running = self._fresh, len(self._begun) - self._ended_before
        self._fresh, self._ended_before = 0, self._ended
        if not fresh and (self.first_at or not (self._letters or self._ended)):
            return  # nothing new, or nothing yet that is not held back
        now = time.perf_counter()
        self._made += fresh
        if not self.first_at:
            self.first_at = now
            self.served.ttft.observe(now - self.exchange.received)
        elif fresh:
            self.served.inter_token.observe((now - self._last_at) * running / fresh, fresh)
        self.served.heard_at = time.monotonic()
        self._last_at = now

    @property
    def times(self) -> Times:
        """How long it took, once it is done."""
        timing = self._timing or Timing()
        return Times(self.submitted_at - self.exchange.received, timing.ttft_s, timing.total_s)

    # What subclasses do

    @property
    def untouched(self) -> bool:
        """Nothing of it was sent to the client: true of whole answers until they are complete."""
        return True

    def pump(self) -> None:
        """Send what is ready, as far as the client reads it."""

    def complete(self) -> None:
        raise NotImplementedError

    def fail(self, error: EnginebayError) -> None:
        """Say so in an answer that is half sent."""
        raise AssertionError("a whole answer is never half sent")


def _together(one: Timing, other: Timing) -> Timing:
    """Of prompts that were submitted at the same time: the first token of any, and the end of all."""
    return Timing(min(one.ttft_s, other.ttft_s), max(one.total_s, other.total_s))


def _sum(one: Energy, other: Energy | None) -> Energy:
    """Of several prompts; what one of them lacks, all lack."""
    if one.joules is None or other is None or other.joules is None:
        return one if one.joules is None or other is None else other
    return Energy(one.joules + other.joules, other.idle_w)


class _Part:
    """One prompt of several: its choices are numbered after those of the prompts before it."""

    __slots__ = ("_answer", "_offset")

    def __init__(self, answer: Answer, offset: int) -> None:
        self._answer = answer
        self._offset = offset

    def token(self, text: str, token_id: int) -> None:
        self._answer.delta(Delta(text, (token_id,), self._offset))

    def delta(self, delta: Delta) -> None:
        self._answer.delta(replace(delta, choice=delta.choice + self._offset))

    def flushed(self) -> None:
        self._answer.flushed()

    def done(self, done: Done) -> None:
        self._answer.done(done)

    def failed(self, error: EnginebayError) -> None:
        self._answer.failed(error)
