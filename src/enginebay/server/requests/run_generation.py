"""What all generating endpoints do: make requests for the engine, wait for their turn, see the answer through."""

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
    """The request as the engine gets it. What was translated or cut is said in the response's headers.

    `truncate`: keep so many of the prompt's last tokens; `asked`: the output length that the client itself demands;
    `options`: for the chat template; `notes`: what else is not carried out to the letter.
    """
    request_context.sampling = request.sampling
    request_context.translated |= {**session.client.negotiate(request), **notes}
    if session.client.spec.renders:
        if truncate is not None:
            raise Unsupported(
                f"{session.labels[1]} counts tokens elsewhere", "leave it out", param="truncate_prompt_tokens"
            )
        return request
    ids = await session.client.prompt_encoder.encode_request(
        request, large=request_context.has_large_body, **template_options
    )
    param = "messages" if request.messages is not None else "prompt"
    if not ids:
        raise InvalidRequest("the prompt is empty", "give at least one token", param=param)
    if truncate is not None and len(ids) > truncate:
        request_context.truncated_tokens += len(ids) - truncate
        ids = ids[-truncate:]
    sampling = request.sampling
    room = session.client.facts.context_length - len(ids)
    if room < 1:
        raise ContextOverflow(
            f"the prompt has {len(ids)} tokens, and the model's context is {session.client.facts.context_length}",
            "shorten it, or have it cut with truncate_prompt_tokens", param=param,
        )  # fmt: skip
    if requested_max_tokens is not None and requested_max_tokens > room:
        raise ContextOverflow(
            f"the prompt's {len(ids)} tokens and {max_tokens_param} {requested_max_tokens} exceed the model's context of "
            f"{session.client.facts.context_length}",
            f"ask for at most {room} tokens", param=max_tokens_param,
        )  # fmt: skip
    if sampling.max_tokens is not None and sampling.max_tokens > room:
        sampling = replace(sampling, max_tokens=room, min_tokens=min(sampling.min_tokens or 0, room) or None)
    return GenerateRequest(token_ids=tuple(ids), sampling=sampling, lora=request.lora, energy=request.energy)


def add_translation_headers(request_context: RequestContext) -> None:
    """What was done to the request, for whoever looks at the headers."""
    if request_context.translated:
        request_context.add_header_or_comment("x-enginebay-translated", format_translated(request_context.translated))
    if request_context.truncated_tokens:
        request_context.add_header_or_comment(
            "x-enginebay-truncated", f"{request_context.truncated_tokens} tokens of the prompt left out"
        )


def format_translated(translated: Mapping[str, str]) -> str:
    """One line of plain characters, whatever the details are."""
    line = "; ".join(f"{name}: {detail}" if detail else name for name, detail in translated.items())
    return " ".join(line.encode("ascii", "replace").decode().split())


async def generate_response(
    request_context: RequestContext, session: ModelSession, writer: ResponseWriter, requests: Sequence[GenerateRequest]
) -> None:
    """Wait for a place, hand the requests to the engine, and stay until the answer is over."""
    exchange = request_context.exchange
    add_translation_headers(request_context)
    leave = await enter_queue(request_context, session)
    timer: asyncio.TimerHandle | None = None
    try:
        exchange.on_drained = writer.flush
        writer.submit(session.client.client, requests)
        timer = asyncio.get_running_loop().call_later(session.limits.request_timeout_s, _stop_on_timeout, writer)
        error = await writer.finished
        if error is not None and writer.nothing_sent:
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
    writer.stop(make_timeout_error(writer.session, "ask for fewer tokens"))


def make_timeout_error(session: ModelSession, hint: str) -> TimedOut:
    message = f"the answer was not finished within {session.limits.request_timeout_s:g} s"
    return TimedOut(message, format_limit_hint("request_timeout_s", hint))


async def enter_queue(request_context: RequestContext, session: ModelSession) -> Callable[[], None]:
    """Wait for a place at the engine, as long as the client does; gives back what gives the place back."""
    if request_context.exchange.closed:  # while its prompt was read; it would not be told again
        raise Cancelled("the client closed the connection")
    if not session.queue.try_enter():
        await _wait_in_queue(request_context, session)
    entered = time.perf_counter()
    request_context.queued_s = entered - request_context.exchange.received_at
    running = session.running_gauge
    running.inc()

    def leave() -> None:
        running.dec()
        session.queue.leave(time.perf_counter() - entered)

    return leave


async def _wait_in_queue(request_context: RequestContext, session: ModelSession) -> None:
    task = asyncio.current_task()
    assert task is not None
    request_context.exchange.on_close = task.cancel
    waiting = session.waiting_gauge
    waiting.inc()
    try:
        await session.queue.enter()
    except asyncio.CancelledError:
        gone = request_context.exchange.closed
        raise Cancelled("the client closed the connection" if gone else "the server is stopping") from None
    finally:
        waiting.dec()
        request_context.exchange.on_close = None
