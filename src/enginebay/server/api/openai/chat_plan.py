"""Plans a chat: checks the body, applies the chat template, and says how the output is parsed. Shared by every dialect of chat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.config.sections.server_section import ServerLimits
from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import InvalidRequest, RequestError, Unsupported
from enginebay.fleet.routing.prompt_bounds import PromptBound, TextTooLong, get_tokenize_limit
from enginebay.server.api.fields.hosted_tools import drop_hosted_tools
from enginebay.server.api.openai import sampling_params
from enginebay.server.api.openai.reasoning.reasoning_switches import (
    NO_SWITCHES,
    ReasoningSwitches,
    ThinkingFields,
    translate_switches,
)
from enginebay.server.api.openai.reasoning.thought_plan import check_thoughts, plan_thought
from enginebay.server.api.openai.schemas import ChatBody
from enginebay.server.api.openai.template_options import build_template_options
from enginebay.server.api.openai.tool_use import ToolUse, plan_tools
from enginebay.server.encoding.response_writer import estimate_prompt_tokens
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import enter_tokenizer, prepare_request
from enginebay.server.sessions.model_session import ModelSession
from enginebay.text.output_events import OutputEventParser
from enginebay.util.limit_errors import make_limit_error


@dataclass(frozen=True, slots=True)
class ChatPlan:
    request: GenerateRequest  # for the engine
    make_parser: Callable[[], OutputEventParser | None]  # of one choice
    rename_param: Callable[[RequestError], RequestError]  # names the body's field in an engine's error

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling


async def plan_chat(
    request_context: RequestContext, session: ModelSession, lora: str | None, body: ChatBody
) -> ChatPlan:
    """Return the engine's request and the parsers of its output. Raise `RequestError` that names the field."""
    body.tools = drop_hosted_tools(body.tools, request_context.ignored)
    max_tokens, max_tokens_param = _resolve_max_tokens(body)
    tools, sampling = await request_context.run_in_thread_if_large(_read_request, body, session)
    switches = _translate_switches(request_context, session, body)
    check_thoughts(request_context, session, body.messages)
    extras = _collect_extras(body, tools, session) | switches.extras
    request = GenerateRequest(
        messages=tools.with_preface(body.messages),
        sampling=sampling,
        lora=lora,
        extras=extras,
        energy=body.wants_energy,
    )
    template_options = _collect_template_options(body, tools) | switches.template_options
    try:
        prepared = await prepare_request(
            request_context, session, request,
            truncate=body.truncate_prompt_tokens, requested_max_tokens=max_tokens, max_tokens_param=max_tokens_param,
            template_options=template_options, notes=tools.notes,
        )  # fmt: skip
    except RequestError as error:
        raise tools.rename_param(error) from None
    planned, make_parser = await plan_thought(
        request_context, session, request, prepared, template_options, tools.make_parser, switches.max_tokens
    )
    return ChatPlan(planned, make_parser, tools.rename_param)


async def count_chat_tokens(request_context: RequestContext, session: ModelSession, body: ChatBody) -> int:
    """Return the tokens of the prompt, which may exceed the context. Notes a count that is not exact."""
    tools, sampling = await request_context.run_in_thread_if_large(_read_request, body, session)
    extras = _collect_extras(body, tools, session)
    switches = _translate_switches(request_context, session, body)
    request = GenerateRequest(messages=tools.with_preface(body.messages), sampling=sampling, extras=extras)
    if session.client.spec.renders:
        request_context.translated["input_tokens"] = "an estimate: a remote server tokenizes"
        return estimate_prompt_tokens(request)
    bound = PromptBound(get_tokenize_limit(session.client.facts.context_length))
    options = _collect_template_options(body, tools) | switches.template_options
    try:
        async with enter_tokenizer(request_context):
            encode = session.client.prompt_encoder.encode_request
            return len(await encode(request, request_context.has_large_body, bound, **options))
    except TextTooLong as error:
        request_context.translated["input_tokens"] = "a lower bound: the prompt is too long to count"
        return error.min_tokens


def _translate_switches(request_context: RequestContext, session: ModelSession, body: ChatBody) -> ReasoningSwitches:
    if not body.has_thinking_switch:  # most requests
        return NO_SWITCHES
    return translate_switches(request_context, session, ThinkingFields.read_chat(body))


def _read_request(body: ChatBody, session: ModelSession) -> tuple[ToolUse, Sampling]:
    limits = session.limits
    check_message_count(body.messages, limits)
    sampling_params.check_stream_options(body)
    constraint = sampling_params.read_constraint(body, limits)
    tools = plan_tools(body.tools, body.tool_choice, body.parallel_tool_calls, limits, session, constraint)
    max_tokens, max_tokens_param = _resolve_max_tokens(body)
    return tools, sampling_params.read_sampling(
        body, session.sampling_defaults, limits,
        max_tokens=max_tokens, max_tokens_param=max_tokens_param, logprobs=_resolve_logprobs(body), guided=tools.guided,
        vocabulary_size=session.client.prompt_encoder.vocabulary_size,
    )  # fmt: skip


def check_message_count(messages: Sequence[Any], limits: ServerLimits) -> None:
    if len(messages) > limits.messages:
        raise make_limit_error(f"messages has {len(messages)} entries", limits, "messages", "messages")


def _resolve_max_tokens(body: ChatBody) -> tuple[int | None, str]:
    """Return the requested output length, and the field that sets it."""
    lengths = {length for length in (body.max_tokens, body.max_completion_tokens) if length is not None}
    if len(lengths) == 2:
        raise InvalidRequest(
            "max_tokens and max_completion_tokens differ", "remove one of them", param="max_completion_tokens"
        )
    return lengths.pop() if lengths else None, "max_tokens" if body.max_tokens is not None else "max_completion_tokens"


def _resolve_logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs requires logprobs", "set logprobs to true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _collect_extras(body: ChatBody, tools: ToolUse, session: ModelSession) -> dict[str, Any]:
    """Return the fields for an engine that renders the chat itself."""
    if not session.client.spec.renders:
        return {}
    fields = {"documents": body.documents, "chat_template_kwargs": body.chat_template_kwargs}
    if body.continue_final_message or body.add_generation_prompt is False:
        raise Unsupported(
            "the chat template is applied by a remote server",
            "remove continue_final_message",
            param="continue_final_message",
        )
    return {**tools.extras, **{name: value for name, value in fields.items() if value}}


def _collect_template_options(body: ChatBody, tools: ToolUse) -> dict[str, Any]:
    generation_prompt = body.add_generation_prompt
    if body.continue_final_message and generation_prompt is None:
        generation_prompt = False
    return build_template_options(
        body.chat_template_kwargs,
        tools=tools.template_tools,
        documents=body.documents,
        add_generation_prompt=generation_prompt,
        continue_final_message=body.continue_final_message,
        allow_special_tokens=body.allow_special_tokens,
    )
