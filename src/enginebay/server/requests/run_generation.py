"""The steps shared by all generating endpoints: tokenize, enter the queue, run the engine, write the response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from enginebay.contract import GenerateRequest
from enginebay.errors import Cancelled, ContextOverflow, InvalidRequest, TimedOut, Unsupported
from enginebay.server.encoding.response_writer import ResponseWriter
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.sessions.model_session import ModelSession
from enginebay.util.limit_errors import format_limit_hint


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
    ids = await session.client.prompt_encoder.encode_request(
        request, large=request_context.has_large_body, **template_options
    )
    param = "messages" if request.messages is not None else "prompt"
    if not ids:
        raise InvalidRequest("the prompt is empty", "send at least one token", param=param)
    if truncate is not None and len(ids) > truncate:
        request_context.truncated_tokens += len(ids) - truncate
        ids = ids[-truncate:]
    sampling = request.sampling
    available = session.client.facts.context_length - len(ids)
    if available < 1:
        raise ContextOverflow(
            f"the prompt ({len(ids)} tokens) plus output exceeds the model's context length of "
            f"{session.client.facts.context_length} tokens",
            "shorten the prompt, or set truncate_prompt_tokens", param=param,
        )  # fmt: skip
    if requested_max_tokens is not None and requested_max_tokens > available:
        raise ContextOverflow(
            f"the prompt ({len(ids)} tokens) plus {max_tokens_param} ({requested_max_tokens}) exceeds the model's context length of "
            f"{session.client.facts.context_length} tokens",
            f"request at most {available} tokens", param=max_tokens_param,
        )  # fmt: skip
    if sampling.max_tokens is not None and sampling.max_tokens > available:
        min_tokens = min(sampling.min_tokens or 0, available) or None
        sampling = replace(sampling, max_tokens=available, min_tokens=min_tokens)
    return GenerateRequest(token_ids=tuple(ids), sampling=sampling, lora=request.lora, energy=request.energy)


def add_translation_headers(request_context: RequestContext) -> None:
    """Report translated parameters and truncated tokens in headers."""
    if request_context.translated:
        request_context.add_header_or_comment("x-enginebay-translated", format_translated(request_context.translated))
    if request_context.truncated_tokens:
        request_context.add_header_or_comment(
            "x-enginebay-truncated", f"{request_context.truncated_tokens} prompt tokens dropped"
        )


def format_translated(translated: Mapping[str, str]) -> str:
    """Return one line of ASCII, safe for a header."""
    line = "; ".join(f"{name}: {detail}" if detail else name for name, detail in translated.items())
    return " ".join(line.encode("ascii", "replace").decode().split())


async def generate_response(
    request_context: RequestContext, session: ModelSession, writer: ResponseWriter, requests: Sequence[GenerateRequest]
) -> None:
    """Enter the queue, submit the requests, and wait until the response is finished."""
    exchange = request_context.exchange
    add_translation_headers(request_context)
    leave = await enter_queue(request_context, session)
    timer: asyncio.TimerHandle | None = None
    try:
        exchange.on_drained = writer.flush
        writer.counted_tokens = request_context.counted_tokens
        writer.submit(session.client.client, requests)
        timer = asyncio.get_running_loop().call_later(session.limits.request_timeout_s, _stop_on_timeout, writer)
        error = await writer.finished
        if error is not None and writer.no_output_sent:
            raise error
        request_context.error = error
    except asyncio.CancelledError:
        writer.finish_cancelled(Cancelled("the server is stopping"))
        raise
    finally:
        if timer is not None:
            timer.cancel()
        exchange.on_close = exchange.on_drained = None
        leave()
        request_context.usage = writer.usage
        request_context.finish_reason = writer.finish_reason
        if writer.first_token_at:
            request_context.ttft_s = writer.first_token_at - exchange.received_at


def _stop_on_timeout(writer: ResponseWriter) -> None:
    writer.stop(make_timeout_error(writer.session, "request fewer tokens"))


def make_timeout_error(session: ModelSession, hint: str) -> TimedOut:
    message = f"the response did not finish within {session.limits.request_timeout_s:g} s"
    return TimedOut(message, format_limit_hint("request_timeout_s", hint))


async def enter_queue(request_context: RequestContext, session: ModelSession) -> Callable[[], None]:
    """Wait for a slot at the engine. Return the function that frees it."""
    if request_context.exchange.closed:  # during tokenization: `on_close` was not set yet
        raise Cancelled("the client closed the connection")
    if not session.queue.try_enter():
        await _wait_in_queue(request_context, session)
    entered = time.perf_counter()
    request_context.queued_s = entered - request_context.exchange.received_at
    running_gauge = session.running_gauge
    running_gauge.inc()

    def leave() -> None:
        running_gauge.dec()
        session.queue.leave(time.perf_counter() - entered)

    return leave


async def _wait_in_queue(request_context: RequestContext, session: ModelSession) -> None:
    task = asyncio.current_task()
    assert task is not None
    request_context.exchange.on_close = task.cancel
    waiting_gauge = session.waiting_gauge
    waiting_gauge.inc()
    try:
        await session.queue.enter()
    except asyncio.CancelledError:
        disconnected = request_context.exchange.closed
        raise Cancelled("the client closed the connection" if disconnected else "the server is stopping") from None
    finally:
        waiting_gauge.dec()
        request_context.exchange.on_close = None
