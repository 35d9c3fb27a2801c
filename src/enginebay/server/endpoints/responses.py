"""POST /v1/responses: one answer to a whole conversation. Nothing is stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import RequestError
from enginebay.server.answers.answer import Answer
from enginebay.server.answers.output import Output, Reader
from enginebay.server.answers.response import ResponseEvents, ResponseForm
from enginebay.server.answers.response_answers import StreamedResponse, WholeResponse
from enginebay.server.call import Call
from enginebay.server.context import Context
from enginebay.server.generating import prepare, run
from enginebay.server.responses_input import (
    check_fields,
    in_our_words,
    read_generating,
    read_logprobs,
    read_messages,
    read_tool_choice,
    read_tools,
)
from enginebay.server.sampling import check_bookkeeping, read_constraint, read_sampling
from enginebay.server.served import ServedModel
from enginebay.server.template_options import read_template_options
from enginebay.server.tool_use import ToolUse, plan_tools
from enginebay.server.wire.bodies import ResponsesBody
from enginebay.server.wire.decode import decode


async def responses(context: Context, call: Call) -> None:
    body = decode(ResponsesBody, call.exchange.body)
    served, lora = await context.model(call, body.model, stream=bool(body.stream))
    call.stream = bool(body.stream)
    call.prompt = body.input
    try:
        asked = await call.beside(_read, body, served, lora)
    except RequestError as error:
        raise in_our_words(error) from None
    try:
        prepared = await prepare(
            call, served, asked.request,
            truncate=body.truncate_prompt_tokens, asked=body.max_output_tokens, options=asked.options,
            notes=asked.tools.notes,
        )  # fmt: skip
        await run(call, served, _answer(call, served, body, asked), [prepared])
    except RequestError as error:
        raise in_our_words(asked.tools.named(error)) from None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A body in the terms of a chat."""

    request: GenerateRequest
    tools: ToolUse
    options: dict[str, Any]

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling


def _read(body: ResponsesBody, served: ServedModel, lora: str | None) -> _Asked:
    check_bookkeeping(body)
    check_fields(body)
    limits = served.limits
    messages = read_messages(body, limits)
    generating = read_generating(body)
    tools = plan_tools(
        read_tools(body.tools), read_tool_choice(body.tool_choice), body.parallel_tool_calls, limits, served,
        replace(read_constraint(generating, limits), param="text.format"),
    )  # fmt: skip
    sampling = read_sampling(
        generating, served.defaults, limits,
        max_tokens=body.max_output_tokens, logprobs=read_logprobs(body), guided=tools.guided,
        vocabulary=served.client.prompts.vocabulary_size,
    )  # fmt: skip
    request = GenerateRequest(
        messages=tools.told(messages), sampling=sampling, lora=lora, extras=tools.extras, energy=body.wants_energy
    )
    return _Asked(request, tools, read_template_options(body.chat_template_kwargs, tools=tools.shown))


def _answer(call: Call, served: ServedModel, body: ResponsesBody, asked: _Asked) -> Answer:
    form = ResponseForm(
        f"resp_{call.id}", int(call.started), body.model, echoed(body, asked.sampling), body.wants_energy
    )
    output = Output(form.id, served.call_id, served.client.prompts.token_bytes)
    reader = Reader(asked.tools.parser(), served.marked)
    if not call.stream:
        return WholeResponse(call.exchange, served, form, output, reader)
    with_logprobs = asked.sampling.logprobs is not None
    return StreamedResponse(call.exchange, served, ResponseEvents(form, output), reader, with_logprobs=with_logprobs)


def echoed(body: ResponsesBody, sampling: Sampling) -> dict[str, Any]:
    """What the response says about the request, with the values that were in effect."""
    text = (body.text.format if body.text is not None else None) or {"type": "text"}
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "prompt_cache_key": body.prompt_cache_key,
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "temperature": sampling.value("temperature"),
        "text": {"format": text, "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": [{"description": None, "parameters": None, "strict": None, **tool} for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling.value("top_p"),
        "user": body.user,
    }
