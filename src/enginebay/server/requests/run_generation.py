"""The steps shared by all generating endpoints: tokenize, enter the queue, run the engine, write the response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from enginebay.contract import GenerateRequest
from enginebay.errors import (
    Cancelled,
    ContextOverflow,
    Draining,
    EnginebayError,
    InvalidRequest,
    Overloaded,
    TimedOut,
    Unsupported,
    WorkerDied,
)
from enginebay.fleet.routing.prompt_bounds import TextTooLong, make_bound
from enginebay.server.encoding.response_writer import ResponseWriter
from enginebay.server.requests.crash_guard import SuspectTrial, check_session
from enginebay.server.requests.replica_choice import choose_replica
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.resume_policy import count_resume, is_resumable, should_resume, wait_disconnected
from enginebay.server.requests.suspect_table import compute_digest
from enginebay.server.sessions.model_session import ModelSession
from enginebay.server.telemetry.server_metrics import MetricValue
from enginebay.util.limit_errors import format_limit_hint

_WAITED_S = 0.01  # a request that a full queue refuses did not wait
_DRAINING_RETRY_S = 0.05  # before looking for the successor of a draining worker
_TOKENIZER_SLOT_BYTES = 1 << 20  # a larger body takes several places
WHOLE_CONTEXT = -1  # as a requested length: up to the end of the context

T = TypeVar("T")


async def prepare_request(
    request_context: RequestContext,
    session: ModelSession,
    request: GenerateRequest,
    *,
    truncate: int | None = None,
    requested_max_tokens: int | None = None,
    max_tokens_param: str = "max_tokens",
    template_options: Mapping[str, Any] = MappingProxyType({}),
    notes: Mapping[str, str] = MappingProxyType({}),
) -> GenerateRequest:
    """Return the request for the engine, tokenized and checked against the context length.

    `truncate`: keep this many of the prompt's last tokens. `requested_max_tokens`: the output length the client asks for.
    `notes`: more entries for x-enginebay-translated.
    """
    request_context.sampling = request.sampling
    request_context.translated |= {**session.client.negotiate(request), **notes}
    if session.client.spec.renders:
        if requested_max_tokens == WHOLE_CONTEXT:
            request_context.translated[max_tokens_param] = "up to the end of the context"
        if truncate is not None:
            raise Unsupported(
                f"{session.labels[1]} tokenizes on a remote server",
                "remove truncate_prompt_tokens",
                param="truncate_prompt_tokens",
            )
        if "allow_special_tokens" in template_options:
            raise Unsupported(
                f"{session.labels[1]} tokenizes on a remote server",
                "remove allow_special_tokens",
                param="allow_special_tokens",
            )
        return request
    param = "messages" if request.messages is not None else "prompt"
    context_length = session.client.facts.context_length
    bound = make_bound(context_length, truncate, keep="last")
    encode = session.client.prompt_encoder.encode_request
    try:
        if request_context.has_large_body:
            async with enter_tokenizer(request_context):
                ids = await encode(request, True, bound, **template_options)
        else:
            ids = await encode(request, False, bound, **template_options)
    except TextTooLong as error:
        raise make_overflow_error(param, f"at least {error.min_tokens}", context_length) from None
    if not ids:
        raise InvalidRequest("the prompt is empty", "send at least one token", param=param)
    if truncate is not None and len(ids) > truncate:
        request_context.truncated_tokens += len(ids) - truncate
        request_context.text_cut |= bound.cut
        ids = ids[-truncate:]
    sampling = request.sampling
    available = context_length - len(ids)
    if available < 1:
        raise make_overflow_error(param, str(len(ids)), context_length)
    if requested_max_tokens is not None and not 0 < requested_max_tokens <= available:
        length = min(available, sampling.max_tokens or available)  # the server may allow less
        detail = f"{length}: the context has {context_length} tokens and the prompt {len(ids)}"
        request_context.translated[max_tokens_param] = detail
    if sampling.max_tokens is not None and sampling.max_tokens > available:
        min_tokens = min(sampling.min_tokens or 0, available) or None
        sampling = replace(sampling, max_tokens=available, min_tokens=min_tokens)
    return GenerateRequest(token_ids=tuple(ids), sampling=sampling, lora=request.lora, energy=request.energy)


def make_overflow_error(param: str, tokens: str, context_length: int) -> ContextOverflow:
    """Clients look for these words to shorten the conversation and try again: LiteLLM for the first sentence, LangChain for the last."""
    return ContextOverflow(
        f"This model's maximum context length is {context_length} tokens. However, your {param} resulted in {tokens} tokens",
        "the prompt is too long: shorten it, or set truncate_prompt_tokens",
        param=param,
    )


@asynccontextmanager
async def enter_tokenizer(request_context: RequestContext) -> AsyncIterator[None]:
    """Wait for one of the few places where large bodies are tokenized: each takes much memory and a processor."""
    queue, client = request_context.tokenizer_queue, request_context.client
    if queue is None or not request_context.has_large_body:
        yield
        return
    if request_context.exchange.closed:
        raise Cancelled("the client closed the connection")
    slots = 1 + request_context.prompt_bytes // _TOKENIZER_SLOT_BYTES
    if not queue.try_enter(client, slots):
        try:
            await _wait(request_context, None, queue.enter(client, slots))
        except Overloaded as error:
            raise _make_tokenizer_error(error) from None
    entered = time.perf_counter()
    try:
        yield
    finally:
        queue.leave(time.perf_counter() - entered, client, slots)


def _make_tokenizer_error(error: Overloaded) -> Overloaded:
    busy = Overloaded("too many large requests wait to be tokenized", error.hint, retry_after_s=error.retry_after_s)
    busy.of_model = False
    return busy


def add_translation_headers(request_context: RequestContext) -> None:
    """Report translated and ignored parameters, and truncated tokens, in headers."""
    if request_context.translated:
        request_context.add_header_or_comment("x-enginebay-translated", format_translated(request_context.translated))
    if request_context.ignored:
        request_context.add_header_or_comment("x-enginebay-ignored", format_translated(request_context.ignored))
    if request_context.truncated_tokens:
        request_context.add_header_or_comment(
            "x-enginebay-truncated",
            f"{'at least ' if request_context.text_cut else ''}{request_context.truncated_tokens} prompt tokens dropped",
        )


def format_translated(translated: Mapping[str, str]) -> str:
    """Return one line of ASCII, safe for a header."""
    line = "; ".join(f"{name}: {detail}" if detail else name for name, detail in translated.items())
    return " ".join(line.encode("ascii", "replace").decode().split())


async def generate_response(
    request_context: RequestContext, session: ModelSession, writer: ResponseWriter, requests: Sequence[GenerateRequest]
) -> None:
    """Enter the queue, submit the requests, and wait until the response is finished, on several workers if one dies."""
    exchange = request_context.exchange
    add_translation_headers(request_context)
    exchange.on_drained = writer.flush
    writer.counted_tokens = request_context.counted_tokens
    writer.thought_limits = request_context.thought_limits
    writer.error_form = request_context.error_form
    writer.is_resumable = is_resumable(request_context, session, requests)
    try:
        error = await _run_on_worker(request_context, session, writer, requests)
        if error is not None and writer.is_paused:
            error = await _continue_response(request_context, session, writer, requests, error)
        if error is not None and writer.no_output_sent:
            raise error
        request_context.error = error
    except asyncio.CancelledError:
        if writer.submitted_at:
            writer.finish_cancelled(Cancelled("the server is stopping"))
        raise
    finally:
        exchange.on_close = exchange.on_drained = None
        if writer.timer is not None:
            writer.timer.cancel()
            _record_outcome(request_context, writer)


def _record_outcome(request_context: RequestContext, writer: ResponseWriter) -> None:
    request_context.usage = writer.usage
    request_context.finish_reason = writer.finish_reason
    if writer.first_token_at:
        request_context.ttft_s = writer.first_token_at - request_context.exchange.received_at


async def _run_on_worker(
    request_context: RequestContext, session: ModelSession, writer: ResponseWriter, requests: Sequence[GenerateRequest]
) -> EnginebayError | None:
    """Run the requests, or what is left of them, until the response ends or its worker dies. Return the error."""
    guard, resumed = request_context.crash_guard, writer.is_paused
    digest = partial(compute_digest, request_context.variant, requests)
    trial = guard.find_trial(request_context, digest()) if guard is not None and guard.table else None
    entering = enter_queue(request_context, session, *measure_need(session, requests), trial, again=resumed)
    leave = await (entering if writer.timer is None else _await_until(writer.timer.when(), entering))
    try:
        session, leave = choose_replica(request_context, session, leave, requests, trial, writer)
        check_session(session)
        if resumed:
            writer.resume(session)
            count_resume(request_context)
        else:
            writer.submit(session.client.client, requests)
            timeout_s = session.limits.request_timeout_s
            writer.timer = asyncio.get_running_loop().call_later(timeout_s, _stop_on_timeout, writer)
        if trial is not None:
            trial.watch(lambda: writer.has_new_output)
        error = await writer.finished
        if writer.is_paused and isinstance(error, WorkerDied):
            await wait_disconnected(session)
        if guard is not None and (error is not None or trial is not None):
            error = guard.settle(request_context, session, trial, error, digest)
        return error
    finally:
        leave()
        if trial is not None:
            trial.end()


async def _continue_response(
    request_context: RequestContext,
    session: ModelSession,
    writer: ResponseWriter,
    requests: Sequence[GenerateRequest],
    error: EnginebayError | None,
) -> EnginebayError | None:
    """Continue a paused response on other workers. Return the error that it ends with."""
    loop = asyncio.get_running_loop()
    assert writer.timer is not None and request_context.server is not None
    request_context.wait_deadline = None  # the next load gets a full wait
    while error is not None and writer.is_paused and should_resume(request_context, error):
        if loop.time() >= writer.timer.when():
            error = _make_response_timeout(session)
            break
        try:
            reacquiring = request_context.server.reacquire_session(request_context, session)
            session = await _await_until(writer.timer.when(), reacquiring)
            error = await _run_on_worker(request_context, session, writer, requests)
        except EnginebayError as problem:
            error = problem
        except TimeoutError:
            error = _make_response_timeout(session)
        if writer.is_paused and loop.time() >= writer.timer.when():  # whatever the wait ended with
            error = _make_response_timeout(session)
        if isinstance(error, Draining) and request_context.session is not None:
            request_context.session.draining = True
            await asyncio.sleep(_DRAINING_RETRY_S)
    if error is not None and writer.is_paused:
        writer.fail(error)
    return error


async def _await_until(deadline: float, work: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout_at(deadline):
        return await work


def _stop_on_timeout(writer: ResponseWriter) -> None:
    writer.stop(_make_response_timeout(writer.session))


def _make_response_timeout(session: ModelSession) -> TimedOut:
    return make_timeout_error(session, "request fewer tokens")


def make_timeout_error(session: ModelSession, hint: str) -> TimedOut:
    message = f"the response did not finish within {session.limits.request_timeout_s:g} s"
    return TimedOut(message, format_limit_hint("request_timeout_s", hint))


def measure_need(session: ModelSession, requests: Sequence[GenerateRequest]) -> tuple[int, int]:
    """Return the slots that the requests take in the engine, and the tokens that they reserve in its KV cache."""
    choices = [request.sampling.best_of or request.sampling.n for request in requests]
    if not session.queue.reserves_tokens:
        return sum(choices), 0
    context = session.client.facts.context_length
    lengths = [min(context, len(one.token_ids or ()) + (one.sampling.max_tokens or context)) for one in requests]
    return sum(choices), sum(count * length for count, length in zip(choices, lengths, strict=True))


async def enter_queue(
    request_context: RequestContext,
    session: ModelSession,
    slots: int = 1,
    tokens: int = 0,
    trial: SuspectTrial | None = None,
    again: bool = False,
) -> Callable[[], None]:
    """Wait for slots at the engine; a suspect, until it can run alone. Return the function that frees them.

    `again`: the request had slots on a worker that died.
    """
    if request_context.exchange.closed:  # during tokenization: `on_close` was not set yet
        raise Cancelled("the client closed the connection")
    client = request_context.client
    if trial is not None and await _wait(request_context, session, trial.begin(session)):
        session.queue.enter_held(client, slots, tokens)
    elif again:
        await _wait(request_context, session, session.queue.enter_again(client, slots, tokens))
    elif not session.queue.try_enter(client, slots, tokens):
        await _wait(request_context, session, session.queue.enter(client, slots, tokens))
    entered = time.perf_counter()
    if not again:
        request_context.queued_s = entered - request_context.exchange.received_at
    running_gauge = session.running_gauge
    running_gauge.inc()

    def leave() -> None:
        running_gauge.dec()
        session.queue.leave(time.perf_counter() - entered, client, slots, tokens)

    return leave


async def _wait(request_context: RequestContext, session: ModelSession | None, turn: Coroutine[Any, Any, T]) -> T:
    """Wait for a turn, as long as the client does. `session`: whose gauge counts it."""
    task = asyncio.current_task()
    assert task is not None
    request_context.exchange.on_close = task.cancel
    waiting_gauge = MetricValue() if session is None else session.waiting_gauge
    waiting_gauge.inc()
    began = time.perf_counter()
    try:
        return await turn
    except Overloaded:
        if session is not None and time.perf_counter() - began > _WAITED_S:
            request_context.queued_s = time.perf_counter() - request_context.exchange.received_at
        raise
    except asyncio.CancelledError:
        disconnected = request_context.exchange.closed
        raise Cancelled("the client closed the connection" if disconnected else "the server is stopping") from None
    finally:
        waiting_gauge.dec()
        request_context.exchange.on_close = None
