"""POST /v1/chat/completions"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enginebay.config.server import Limits
from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import InvalidRequest, RequestError, Unsupported
from enginebay.server.answers.chat import ChatForm
from enginebay.server.answers.choice import Choice
from enginebay.server.answers.streamed import Streamed
from enginebay.server.answers.whole import Whole
from enginebay.server.call import Call
from enginebay.server.context import Context
from enginebay.server.generating import prepare, run
from enginebay.server.limit_words import over_limit
from enginebay.server.sampling import (
    check_bookkeeping,
    check_stream_options,
    read_constraint,
    read_sampling,
    stream_notes,
)
from enginebay.server.served import ServedModel
from enginebay.server.template_options import read_template_options
from enginebay.server.tool_use import ToolUse, plan_tools
from enginebay.server.wire.bodies import ChatBody
from enginebay.server.wire.decode import decode

# Fields of the OpenAI API that ask for what is not done here, and what to do instead.
_REFUSED = {
    "prediction": ("a predicted output is not used", "leave out prediction"),
    "audio": ("only text comes out", "leave out audio"),
    "web_search_options": ("nothing is searched for here", "leave it out, or give the model a tool that searches"),
    "moderation": ("nothing is moderated here", "leave out moderation"),
    "functions": ("functions are asked for as tools", "send them as tools, and the choice among them as tool_choice"),
}


async def chat(context: Context, call: Call) -> None:
    body = decode(ChatBody, call.exchange.body)
    served, lora = await context.model(call, body.model, stream=bool(body.stream))
    call.stream = bool(body.stream)
    call.prompt = body.messages
    tools, sampling = await call.beside(_read, body, served)
    try:
        await _answer(call, body, served, lora, tools, sampling)
    except RequestError as error:
        raise tools.named(error) from None


async def _answer(
    call: Call, body: ChatBody, served: ServedModel, lora: str | None, tools: ToolUse, sampling: Sampling
) -> None:
    asked, asked_param = _max_tokens(body)
    request = GenerateRequest(
        messages=tools.told(body.messages), sampling=sampling, lora=lora, extras=_extras(body, tools, served),
        energy=body.wants_energy,
    )  # fmt: skip
    prepared = await prepare(
        call, served, request,
        truncate=body.truncate_prompt_tokens, asked=asked, asked_param=asked_param,
        options=_template_options(body, tools), notes={**tools.notes, **stream_notes(body)},
    )  # fmt: skip
    choices = [Choice(index, tools.parser()) for index in range(sampling.n)]
    form = ChatForm(
        id=f"chatcmpl-{call.id}",
        created=int(call.started),
        model=body.model,
        fingerprint=served.engine,
        choices=sampling.n,
        with_logprobs=sampling.logprobs is not None,
        include_usage=body.wants_usage,
        include_timing=body.wants_timing,
        include_energy=body.wants_energy,
        token_bytes=served.client.prompts.token_bytes,
    )
    answer = (
        Streamed(call.exchange, served, choices, form)
        if call.stream
        else Whole(call.exchange, served, choices, form.body)
    )
    await run(call, served, answer, [prepared])


def _read(body: ChatBody, served: ServedModel) -> tuple[ToolUse, Sampling]:
    limits = served.limits
    check_chat(body, limits)
    constraint = read_constraint(body, limits)
    tools = plan_tools(body.tools, body.tool_choice, body.parallel_tool_calls, limits, served, constraint)
    asked, asked_param = _max_tokens(body)
    return tools, read_sampling(
        body, served.defaults, limits,
        max_tokens=asked, max_tokens_param=asked_param, logprobs=_logprobs(body), guided=tools.guided,
        vocabulary=served.client.prompts.vocabulary_size,
    )  # fmt: skip


def check_chat(body: ChatBody, limits: Limits) -> None:
    """Fields that are not about sampling."""
    check_bookkeeping(body)
    check_length(body.messages, limits)
    if body.chat_template is not None:
        raise Unsupported(
            "a chat template is a program, and only the model's own is run",
            "leave out chat_template",
            param="chat_template",
        )
    if body.modalities not in (None, ["text"]):
        raise Unsupported("only text comes out", "leave out modalities", param="modalities")
    for name, (what, hint) in _REFUSED.items():
        if getattr(body, name) is not None:
            raise Unsupported(what, hint, param=name)
    if body.verbosity in ("low", "high"):
        raise Unsupported("verbosity cannot be set", "say in a message how long to be", param="verbosity")
    if body.function_call not in (None, "auto"):
        raise Unsupported(*_REFUSED["functions"], param="function_call")
    if body.reasoning_effort is not None:
        raise Unsupported(
            "reasoning_effort has no common meaning",
            "give the template's own switch in chat_template_kwargs", param="reasoning_effort",
        )  # fmt: skip
    check_stream_options(body)


def check_length(messages: Sequence[Any], limits: Limits) -> None:
    if len(messages) > limits.messages:
        raise over_limit(f"messages has {len(messages)} entries", limits, "messages", "messages")


def _max_tokens(body: ChatBody) -> tuple[int | None, str]:
    """The output length that is asked for, and the field that asks for it."""
    given = {one for one in (body.max_tokens, body.max_completion_tokens) if one is not None}
    if len(given) == 2:
        raise InvalidRequest(
            "max_tokens and max_completion_tokens differ", "give one of them", param="max_completion_tokens"
        )
    return given.pop() if given else None, "max_tokens" if body.max_tokens is not None else "max_completion_tokens"


def _logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs", "set logprobs to true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _extras(body: ChatBody, tools: ToolUse, served: ServedModel) -> dict[str, Any]:
    """What an engine with a template of its own needs to know of the chat."""
    if not served.client.spec.renders:
        return {}
    asked = {"documents": body.documents, "chat_template_kwargs": body.chat_template_kwargs}
    if body.continue_final_message or body.add_generation_prompt is False:
        raise Unsupported("the chat is rendered elsewhere", "leave it out", param="continue_final_message")
    return {**tools.extras, **{name: value for name, value in asked.items() if value}}


def _template_options(body: ChatBody, tools: ToolUse) -> dict[str, Any]:
    generation_prompt = body.add_generation_prompt
    if body.continue_final_message and generation_prompt is None:
        generation_prompt = False
    return read_template_options(
        body.chat_template_kwargs,
        tools=tools.shown,
        documents=body.documents,
        add_generation_prompt=generation_prompt,
        continue_final_message=body.continue_final_message,
    )
