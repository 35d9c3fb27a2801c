"""The life of one answer, whatever its form: submitted, timed, finished, failed or cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from enginebay.contract import Delta, GenerateRequest
from enginebay.contract.engine_messages import Done, Energy, Timing, Usage
from enginebay.errors import Cancelled, EnginebayError, TimedOut
from enginebay.server.encoding.choice_state import ResponseTiming
from enginebay.server.encoding.error_responses import build_error_headers, encode_error_body, get_error_row
from enginebay.server.encoding.token_estimates import estimate_completion_tokens, estimate_prompt_tokens
from enginebay.server.http.exchange import Exchange
from enginebay.server.sessions.model_session import ModelSession
from enginebay.worker.client_side.worker_client import WorkerClient


class ResponseWriter:
    """Listens to the engine for one HTTP request, which may be several requests to the engine: one for each prompt.

    Subclasses say what is done with tokens (`token`, `delta`), with all that one flush brought (`pump`), at the end
    (`complete`) and with an error (`fail`, once something was sent). `over` is done when there is nothing more to come,
    with the error if any. While it is `untouched` an error is for whoever runs it: there may be another try.
    """

    def __init__(self, exchange: Exchange, session: ModelSession) -> None:
        self.exchange = exchange
        self.session = session
        self.finished: asyncio.Future[EnginebayError | None] = asyncio.get_running_loop().create_future()
        self.usage = Usage()
        self.energy: Energy | None = None  # where it is asked for
        self.finish_reason = ""  # of the choice that ended last
        self.submitted_at = 0.0
        self.first_token_at = 0.0
        self._last_flush_at = 0.0
        self._timing: Timing | None = None  # by the worker's clock
        self._client: WorkerClient | None = None
        self._request_numbers: list[int] = []
        self._pending_requests = 0
        self._new_tokens = 0  # tokens since the last flush
        self._flushed_tokens = 0  # tokens before that
        self._started_choices = {0}  # choices that have brought something; most answers have but this one
        self._ended_choices = 0  # choices that have ended
        self._ended_at_last_flush = 0  # those that had when the last flush came
        self._uncounted_pieces = self._uncounted_chars = (
            0  # pieces without token ids, as of text from elsewhere, and how long they were
        )
        self._requests: Sequence[GenerateRequest] = ()

    def submit(self, client: WorkerClient, requests: Sequence[GenerateRequest]) -> None:
        self._client = client
        self._pending_requests = len(requests)
        self._requests = requests
        self.submitted_at = self._last_flush_at = time.perf_counter()
        self.exchange.on_close = self.cancel
        choices = requests[0].sampling.n
        for place, request in enumerate(requests):
            listener = self if len(requests) == 1 else _PromptListener(self, place * choices)
            self._request_numbers.append(client.submit(request, listener))

    def cancel(self) -> None:
        """The client has gone: the engine's place is freed within a step."""
        self._finish(Cancelled("the client closed the connection"))

    def stop(self, error: EnginebayError) -> None:
        """End it from our side, and say why."""
        if not self.finished.done():
            if not self.nothing_sent:
                self.write_failure(error)
            self._finish(error)

    def finish_cancelled(self, error: EnginebayError) -> None:
        """Whoever waited for `over` was cancelled, and `over` with it."""
        if self.nothing_sent and not self.exchange.started:
            self.exchange.respond(
                get_error_row(error).status, encode_error_body(error), headers=build_error_headers(error)
            )
        else:
            self.write_failure(error)
        self._release(error)

    def _finish(self, error: EnginebayError | None) -> None:
        if self.finished.done():
            return
        self.finished.set_result(error)
        if error is not None:
            self._release(error)

    def _release(self, error: EnginebayError) -> None:
        """Take the requests back from the engine. What they had cost until then is counted by us."""
        made = max(
            self._flushed_tokens + self._new_tokens,
            estimate_completion_tokens(self._uncounted_pieces, self._uncounted_chars),
        )
        read = made or isinstance(error, (Cancelled, TimedOut))  # else a server elsewhere may never have got them
        counted = [request for request in self._requests if read or request.token_ids is not None]
        self.usage = Usage(sum(map(estimate_prompt_tokens, counted)), made, self.usage.cached_tokens)
        if self._client is not None:
            for number in self._request_numbers:
                self._client.cancel(number)

    def _count_delta(self, delta: Delta) -> None:
        """For times and costs; a plain token adds to `_new_tokens` by itself."""
        self._new_tokens += len(delta.token_ids)
        self._started_choices.add(delta.choice)
        if delta.finish_reason is not None:
            self._ended_choices += 1
        elif not delta.token_ids:
            self._uncounted_pieces += 1
            self._uncounted_chars += len(delta.text)

    # What the worker's client calls

    def on_token(self, text: str, token_id: int) -> None:
        raise NotImplementedError

    def on_delta(self, delta: Delta) -> None:
        raise NotImplementedError

    def on_flush(self) -> None:
        if not self.finished.done():
            self._observe_latency()
            self.flush()

    def on_done(self, done: Done) -> None:
        if self.finished.done():
            return
        known, new = self.usage, done.usage
        self.usage = Usage(
            known.prompt_tokens + new.prompt_tokens,
            known.completion_tokens + new.completion_tokens,
            known.cached_tokens + new.cached_tokens,
        )
        self._timing = done.timing if self._timing is None else _merge_timing(self._timing, done.timing)
        self.energy = done.energy if self.energy is None else _add_energy(self.energy, done.energy)
        self._pending_requests -= 1
        if self._pending_requests == 0:
            self._observe_latency()
            self.write_completed()
            self._finish(None)

    def on_error(self, error: EnginebayError) -> None:
        self.stop(error)

    def _observe_latency(self) -> None:
        """Time what has come since the last flush. Its tokens are those of all choices that run side by side."""
        fresh, running = self._new_tokens, len(self._started_choices) - self._ended_at_last_flush
        self._new_tokens, self._ended_at_last_flush = 0, self._ended_choices
        if not fresh and (self.first_token_at or not (self._uncounted_chars or self._ended_choices)):
            return  # nothing new, or nothing yet that is not held back
        now = time.perf_counter()
        self._flushed_tokens += fresh
        if not self.first_token_at:
            self.first_token_at = now
            self.session.ttft.observe(now - self.exchange.received_at)
        elif fresh:
            self.session.inter_token.observe((now - self._last_flush_at) * running / fresh, fresh)
        self.session.last_token_at = time.monotonic()
        self._last_flush_at = now

    @property
    def timing(self) -> ResponseTiming:
        """How long it took, once it is done."""
        timing = self._timing or Timing()
        return ResponseTiming(self.submitted_at - self.exchange.received_at, timing.ttft_s, timing.total_s)

    # What subclasses do

    @property
    def nothing_sent(self) -> bool:
        """Nothing of it was sent to the client: true of whole answers until they are complete."""
        return True

    def flush(self) -> None:
        """Send what is ready, as far as the client reads it."""

    def write_completed(self) -> None:
        raise NotImplementedError

    def write_failure(self, error: EnginebayError) -> None:
        """Say so in an answer that is half sent."""
        raise AssertionError("a whole answer is never half sent")


def _merge_timing(one: Timing, other: Timing) -> Timing:
    """Of prompts that were submitted at the same time: the first token of any, and the end of all."""
    return Timing(min(one.ttft_s, other.ttft_s), max(one.total_s, other.total_s))


def _add_energy(one: Energy, other: Energy | None) -> Energy:
    """Of several prompts; what one of them lacks, all lack."""
    if one.joules is None or other is None or other.joules is None:
        return one if one.joules is None or other is None else other
    return Energy(one.joules + other.joules, other.idle_w)


class _PromptListener:
    """One prompt of several: its choices are numbered after those of the prompts before it."""

    __slots__ = ("_choice_offset", "_writer")

    def __init__(self, answer: ResponseWriter, offset: int) -> None:
        self._writer = answer
        self._choice_offset = offset

    def on_token(self, text: str, token_id: int) -> None:
        self._writer.on_delta(Delta(text, (token_id,), self._choice_offset))

    def on_delta(self, delta: Delta) -> None:
        self._writer.on_delta(replace(delta, choice=delta.choice + self._choice_offset))

    def on_flush(self) -> None:
        self._writer.on_flush()

    def on_done(self, done: Done) -> None:
        self._writer.on_done(done)

    def on_error(self, error: EnginebayError) -> None:
        self._writer.on_error(error)
