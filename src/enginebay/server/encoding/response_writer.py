"""The lifecycle of one response, whatever its format: submit, time, finish, fail or cancel."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from enginebay.contract import Delta, GenerateRequest
from enginebay.contract.engine_messages import Done, Energy, Timing, Usage
from enginebay.errors import Cancelled, Draining, EnginebayError, TimedOut, WorkerDied
from enginebay.server.encoding.choice_state import ResponseTiming
from enginebay.server.encoding.error_responses import OPENAI_ERRORS, ErrorForm, build_error_headers
from enginebay.server.encoding.thought_listener import AnswerListener, ThoughtLimits, ThoughtListener
from enginebay.server.http.exchange import Exchange
from enginebay.server.sessions.model_session import CountedTokens, ModelSession
from enginebay.worker.client_side.worker_client import GenerationListener, WorkerClient

_CHARS_PER_TOKEN = 4
_ENERGY_LOST = "a worker died during the request, and its energy readings were lost"


class ResponseWriter:
    """Listens to the engine for one HTTP request, which submits one engine request per prompt.

    Subclasses handle tokens (`on_token`, `on_delta`), flushes (`flush`), the end (`write_completed`) and errors after
    bytes were sent (`write_failure`). `finished` resolves to the error, or None. While `no_output_sent`, the caller of the
    writer handles the error, since it may retry. When its worker dies, a response that `is_resumable` pauses: then `finished`
    resolves too, and the caller continues it with `resume` or ends it with `fail`.
    """

    def __init__(self, exchange: Exchange, session: ModelSession) -> None:
        self.exchange = exchange
        self.session = session
        self.finished: asyncio.Future[EnginebayError | None] = asyncio.get_running_loop().create_future()
        self.usage = Usage()
        self.counted_tokens = CountedTokens()
        self.token_ids = array("I")  # of all choices, in the order of their arrival
        self.thought_limits: ThoughtLimits | None = None  # set: the thought and the answer may be two engine requests
        self.is_resumable = False
        self.is_paused = False
        self.timer: asyncio.TimerHandle | None = None  # ends the response, however many workers it takes
        self.energy: Energy | None = None  # if the request asks for it
        self.finish_reason = ""  # of the last choice to end
        self.error_form: ErrorForm = OPENAI_ERRORS
        self.submitted_at = 0.0
        self.first_token_at = 0.0
        self._run_began_at = 0.0  # when its current worker got it
        self._last_flush_at = 0.0
        self._timing: Timing | None = None  # by the worker's clock
        self._client: WorkerClient | None = None
        self._request_numbers: list[int] = []
        self._pending_requests = 0
        self._flushed_tokens = 0
        self._started_choices = {0}  # choices with output; most requests have only this one
        self._ended_choices = 0
        self._ended_at_last_flush = 0
        self._uncounted_pieces = self._uncounted_chars = 0  # text without token ids, as from remote engines
        self._requests: Sequence[GenerateRequest] = ()
        self._running_request: GenerateRequest | None = None  # the single one that runs, or the second one of two
        self._running_from = 0  # where its output begins in `token_ids`
        self._listener: GenerationListener | None = None  # of that request; None: this writer

    def submit(self, client: WorkerClient, requests: Sequence[GenerateRequest]) -> None:
        self._client = client
        self._pending_requests = len(requests)
        self._requests = requests
        self.submitted_at = self._run_began_at = self._last_flush_at = time.perf_counter()
        self.exchange.on_close = self.cancel
        self._running_request = requests[0]
        if self.thought_limits is not None:
            self._listener = ThoughtListener(self, self.thought_limits)
        choices = requests[0].sampling.n
        for index, request in enumerate(requests):
            listener = self._listener or self if len(requests) == 1 else _PromptListener(self, index * choices)
            self._request_numbers.append(client.submit(request, listener))

    def resume(self, session: ModelSession) -> None:
        """Continue a paused response on another worker, after the tokens that it has."""
        client = session.client.client
        assert self._running_request is not None
        request = replace(self._running_request, generated=tuple(self.token_ids[self._running_from :]))
        number = client.submit(request, _ResumedListener(self, self._listener or self, self._uncounted_chars))
        self._uncounted_chars = self._uncounted_pieces = 0
        self.session, self._client, self._request_numbers = session, client, [number]
        self.is_paused = False
        self.finished = asyncio.get_running_loop().create_future()
        self._run_began_at = time.perf_counter()
        self.exchange.on_close = self.cancel

    def submit_answer(self, request: GenerateRequest) -> None:
        """Generate the answer after a thought, with a second engine request."""
        if self.finished.done():
            return
        assert self._client is not None
        self._running_request, self._running_from = request, len(self.token_ids)
        self._listener = AnswerListener(self, estimate_prompt_tokens(self._requests[0]))
        self._uncounted_chars = self._uncounted_pieces = 0
        try:
            self._request_numbers = [self._client.submit(request, self._listener)]
        except EnginebayError as error:
            self.on_error(error)

    def insert_text(self, text: str) -> None:
        """Add text that the server writes for the model: it counts as no token."""
        counts = self._uncounted_pieces, self._uncounted_chars
        self.on_delta(Delta(text))
        self._uncounted_pieces, self._uncounted_chars = counts

    def restore_markers(self, text: str, token_ids: Sequence[int]) -> str:
        return self.session.restore_markers(text, token_ids)

    def cancel_requests(self) -> None:
        """Cancel the engine requests. No more of their output arrives."""
        if self._client is not None:
            for number in self._request_numbers:
                self._client.cancel(number)

    def fail(self, error: EnginebayError) -> None:
        """End a paused response with this error."""
        self.is_paused = False
        if not self.no_output_sent:
            self.write_failure(error)
        self._release(error)

    def cancel(self) -> None:
        """Cancel because the client disconnected. The engine frees the slot within a step."""
        self._finish(Cancelled("the client closed the connection"))

    def stop(self, error: EnginebayError) -> None:
        """End the response with this error."""
        if not self.finished.done():
            if not self.no_output_sent:
                self.write_failure(error)
            self._finish(error)

    def finish_cancelled(self, error: EnginebayError) -> None:
        """End the response after the task that awaits `finished` was cancelled, and `finished` with it."""
        if self.no_output_sent and not self.exchange.started:
            form = self.error_form
            self.exchange.respond(form.get_status(error), form.encode_body(error), headers=build_error_headers(error))
        else:
            self.write_failure(error)
        self._release(error)

    def _finish(self, error: EnginebayError | None) -> None:
        if self.finished.done():
            return
        self.finished.set_result(error)
        self._listener = None  # it refers to this writer
        if error is not None:
            self._release(error)

    def _release(self, error: EnginebayError) -> None:
        """Cancel the engine requests, and estimate their usage: the engine reports none."""
        completion_tokens = max(
            len(self.token_ids),
            estimate_completion_tokens(self._uncounted_pieces, self._uncounted_chars),
        )
        # After other errors a remote server may never have received the requests.
        received = completion_tokens or isinstance(error, (Cancelled, TimedOut))
        counted = [request for request in self._requests if received or request.token_ids is not None]
        prompt_tokens = sum(map(estimate_prompt_tokens, counted))
        self.usage = Usage(prompt_tokens, completion_tokens, self.usage.cached_tokens)
        self.cancel_requests()

    def _count_delta(self, delta: Delta) -> None:
        """Count a delta for latency and usage. `on_token` counts its token itself."""
        self.token_ids.extend(delta.token_ids)
        self._started_choices.add(delta.choice)
        if delta.finish_reason is not None:
            self._ended_choices += 1
        elif not delta.token_ids:
            self._uncounted_pieces += 1
            self._uncounted_chars += len(delta.text)

    # Callbacks of the worker client

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
        if not self._may_continue(error) or self.finished.done():
            self.stop(error)
        elif self._ended_choices:  # only the counts are missing
            usage = Usage(estimate_prompt_tokens(self._requests[0]), len(self.token_ids))
            self.on_done(self.complete_done(Done(usage, Timing(), Energy() if self._requests[0].energy else None)))
        else:
            self.is_paused = True
            self.finished.set_result(error)

    def _may_continue(self, error: EnginebayError) -> bool:
        """Return whether another worker could continue. A worker that drains has not taken a request."""
        return self.is_resumable and bool(self.token_ids) and isinstance(error, (WorkerDied, Draining))

    def complete_done(self, done: Done, energy_absent: str = _ENERGY_LOST) -> Done:
        """Return the end of a response that had several workers or requests: by this clock, and without energy."""
        timing = Timing(max(0.0, self.first_token_at - self.submitted_at), time.perf_counter() - self.submitted_at)
        return Done(done.usage, timing, None if done.energy is None else Energy(absent=energy_absent))

    def _observe_latency(self) -> None:
        """Count the tokens since the last flush, of all choices that run concurrently, and observe their latency."""
        new_tokens = len(self.token_ids) - self._flushed_tokens
        running = len(self._started_choices) - self._ended_at_last_flush
        self._ended_at_last_flush = self._ended_choices
        if not new_tokens and (self.first_token_at or not (self._uncounted_chars or self._ended_choices)):
            if self._uncounted_pieces:  # the last one may only close a tag, without a token of its own
                self.counted_tokens.count_completion(self.session, self._flushed_tokens + self._uncounted_pieces - 1)
            return  # nothing new, or the engine holds its output back
        now = time.perf_counter()
        self._flushed_tokens += new_tokens
        self.counted_tokens.count_completion(self.session, self._flushed_tokens)
        if not self.first_token_at:
            self.first_token_at = now
            self.counted_tokens.count_prompt(
                self.session, sum(len(request.token_ids) for request in self._requests if request.token_ids is not None)
            )
            self.session.ttft.observe(now - self.exchange.received_at)
        elif new_tokens:
            self.session.inter_token.observe((now - self._last_flush_at) * running / new_tokens, new_tokens)
        self.session.last_token_at = time.monotonic()
        self._last_flush_at = now

    @property
    def has_new_output(self) -> bool:
        """Whether its current worker has sent a token."""
        return self._last_flush_at > self._run_began_at

    @property
    def timing(self) -> ResponseTiming:
        """The timing of a finished response."""
        timing = self._timing or Timing()
        return ResponseTiming(self.submitted_at - self.exchange.received_at, timing.ttft_s, timing.total_s)

    # For subclasses

    @property
    def no_output_sent(self) -> bool:
        """Whether no byte of the response was sent. JSON responses are sent at the end."""
        return True

    def flush(self) -> None:
        """Send what is ready, unless the client reads too slowly."""

    def write_completed(self) -> None:
        raise NotImplementedError

    def write_failure(self, error: EnginebayError) -> None:
        """Report an error in a response that was partly sent."""
        raise AssertionError("a JSON response is never partly sent")


def _merge_timing(left: Timing, right: Timing) -> Timing:
    """Merge the timing of prompts submitted together: the first token of any, the end of all."""
    return Timing(min(left.ttft_s, right.ttft_s), max(left.total_s, right.total_s))


def _add_energy(left: Energy, right: Energy | None) -> Energy:
    """Add the energy of two prompts. If one is unknown, so is the sum."""
    if left.joules is None or right is None or right.joules is None:
        return left if left.joules is None or right is None else right
    return Energy(left.joules + right.joules, right.idle_w)


class _PromptListener:
    """Listens for one prompt of several, and offsets its choice numbers by those of the earlier prompts."""

    __slots__ = ("_choice_offset", "_writer")

    def __init__(self, writer: ResponseWriter, choice_offset: int) -> None:
        self._writer = writer
        self._choice_offset = choice_offset

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


class _ResumedListener:
    """Listens for the rest of a response. `text_ahead`: characters of it that the client has, although not their ids.

    Engines send such text only at the end of an output, when it cannot become a stop string any more.
    """

    __slots__ = ("_listener", "_text_ahead", "_writer")

    def __init__(self, writer: ResponseWriter, listener: GenerationListener, text_ahead: int) -> None:
        self._writer = writer
        self._listener = listener  # of the request that is resumed
        self._text_ahead = text_ahead

    def _take_new(self, text: str) -> str:
        known = min(self._text_ahead, len(text))
        self._text_ahead -= known
        return text[known:]

    def on_token(self, text: str, token_id: int) -> None:
        self._listener.on_token(self._take_new(text) if self._text_ahead else text, token_id)

    def on_delta(self, delta: Delta) -> None:
        self._listener.on_delta(replace(delta, text=self._take_new(delta.text)) if self._text_ahead else delta)

    def on_flush(self) -> None:
        self._listener.on_flush()

    def on_done(self, done: Done) -> None:
        self._listener.on_done(self._writer.complete_done(done))

    def on_error(self, error: EnginebayError) -> None:
        self._listener.on_error(error)


def estimate_prompt_tokens(request: GenerateRequest) -> int:
    """Count the token ids, or estimate from the text of the prompt and its tools."""
    if request.token_ids is not None:
        return len(request.token_ids)
    return max(1, _count_chars((request.text, request.messages, request.extras)) // _CHARS_PER_TOKEN)


def estimate_completion_tokens(pieces: int, chars: int) -> int:
    """Estimate the tokens of a completion that arrived in pieces of at least one token each."""
    return max(pieces, chars // _CHARS_PER_TOKEN)


def _count_chars(value: Any) -> int:
    """Count the characters of all texts in a value, without data URLs of images."""
    chars, pending = 0, [value]
    while pending:  # not recursive: clients control the depth
        item = pending.pop()
        if isinstance(item, str) and not item.startswith("data:"):
            chars += len(item)
        elif isinstance(item, (list, tuple)):
            pending += item
        elif isinstance(item, Mapping):
            pending += item.values()
    return chars
