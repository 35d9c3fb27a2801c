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
from enginebay.server.answers.answer import Answer
from enginebay.server.call import Call
from enginebay.server.limit_words import limit_hint
from enginebay.server.served import ServedModel


async def prepare(
    call: Call,
    served: ServedModel,
    request: GenerateRequest,
    *,
    truncate: int | None = None,
    asked: int | None = None,
    asked_param: str = "max_tokens",
    options: Mapping[str, Any] = MappingProxyType({}),
    notes: Mapping[str, str] = MappingProxyType({}),
) -> GenerateRequest:
    """The request as the engine gets it. What was translated or cut is said in the response's headers.

    `truncate`: keep so many of the prompt's last tokens; `asked`: the output length that the client itself demands;
    `options`: for the chat template; `notes`: what else is not carried out to the letter.
    """
    call.sampling = request.sampling
    call.translated |= {**served.client.negotiate(request), **notes}
    if served.client.spec.renders:
        if truncate is not None:
            raise Unsupported(
                f"{served.labels[1]} counts tokens elsewhere", "leave it out", param="truncate_prompt_tokens"
            )
        return request
    ids = await served.client.prompts.token_ids(request, large=call.large, **options)
    param = "messages" if request.messages is not None else "prompt"
    if not ids:
        raise InvalidRequest("the prompt is empty", "give at least one token", param=param)
    if truncate is not None and len(ids) > truncate:
        call.left_out += len(ids) - truncate
        ids = ids[-truncate:]
    sampling = request.sampling
    room = served.client.facts.context_length - len(ids)
    if room < 1:
        raise ContextOverflow(
            f"the prompt has {len(ids)} tokens, and the model's context is {served.client.facts.context_length}",
            "shorten it, or have it cut with truncate_prompt_tokens", param=param,
        )  # fmt: skip
    if asked is not None and asked > room:
        raise ContextOverflow(
            f"the prompt's {len(ids)} tokens and {asked_param} {asked} exceed the model's context of "
            f"{served.client.facts.context_length}",
            f"ask for at most {room} tokens", param=asked_param,
        )  # fmt: skip
    if sampling.max_tokens is not None and sampling.max_tokens > room:
        sampling = replace(sampling, max_tokens=room, min_tokens=min(sampling.min_tokens or 0, room) or None)
    return GenerateRequest(token_ids=tuple(ids), sampling=sampling, lora=request.lora, energy=request.energy)


def say_headers(call: Call) -> None:
    """What was done to the request, for whoever looks at the headers."""
    if call.translated:
        call.say("x-enginebay-translated", header_text(call.translated))
    if call.left_out:
        call.say("x-enginebay-truncated", f"{call.left_out} tokens of the prompt left out")


def header_text(translated: Mapping[str, str]) -> str:
    """One line of plain characters, whatever the details are."""
    line = "; ".join(f"{name}: {detail}" if detail else name for name, detail in translated.items())
    return " ".join(line.encode("ascii", "replace").decode().split())


async def run(call: Call, served: ServedModel, answer: Answer, requests: Sequence[GenerateRequest]) -> None:
    """Wait for a place, hand the requests to the engine, and stay until the answer is over."""
    exchange = call.exchange
    say_headers(call)
    leave = await enter(call, served)
    timer: asyncio.TimerHandle | None = None
    try:
        exchange.on_drained = answer.pump
        answer.submit(served.client.client, requests)
        timer = asyncio.get_running_loop().call_later(served.limits.request_timeout_s, _too_late, answer)
        error = await answer.over
        if error is not None and answer.untouched:
            raise error
        call.error = error
    except asyncio.CancelledError:
        answer.abandon(Cancelled("the server is stopping"))
        raise
    finally:
        if timer is not None:
            timer.cancel()
        exchange.on_close = exchange.on_drained = None
        leave()
        call.usage = answer.usage
        call.finish_reason = answer.finish_reason
        if answer.first_at:
            call.ttft_s = answer.first_at - exchange.received


def _too_late(answer: Answer) -> None:
    answer.stop(too_late(answer.served, "ask for fewer tokens"))


def too_late(served: ServedModel, hint: str) -> TimedOut:
    message = f"the answer was not finished within {served.limits.request_timeout_s:g} s"
    return TimedOut(message, limit_hint("request_timeout_s", hint))


async def enter(call: Call, served: ServedModel) -> Callable[[], None]:
    """Wait for a place at the engine, as long as the client does; gives back what gives the place back."""
    if call.exchange.closed:  # while its prompt was read; it would not be told again
        raise Cancelled("the client closed the connection")
    if not served.gate.enter_now():
        await _wait(call, served)
    entered = time.perf_counter()
    call.queued_s = entered - call.exchange.received
    running = served.running
    running.inc()

    def leave() -> None:
        running.dec()
        served.gate.leave(time.perf_counter() - entered)

    return leave


async def _wait(call: Call, served: ServedModel) -> None:
    task = asyncio.current_task()
    assert task is not None
    call.exchange.on_close = task.cancel
    waiting = served.waiting
    waiting.inc()
    try:
        await served.gate.enter()
    except asyncio.CancelledError:
        gone = call.exchange.closed
        raise Cancelled("the client closed the connection" if gone else "the server is stopping") from None
    finally:
        waiting.dec()
        call.exchange.on_close = None
