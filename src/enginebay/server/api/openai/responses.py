"""POST /v1/responses, without stored state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import RequestError
from enginebay.server.api.body_decoder import decode_body
from enginebay.server.api.openai import responses_input
from enginebay.server.api.openai.encoders.responses_encoder import ResponseEncoder, ResponseEventEncoder
from enginebay.server.api.openai.encoders.responses_output import OutputParser, ResponseOutput
from enginebay.server.api.openai.encoders.responses_writers import ResponsesJsonWriter, ResponsesSseWriter
from enginebay.server.api.openai.reasoning.reasoning_items import list_ignored_reasoning, read_thinking_fields
from enginebay.server.api.openai.reasoning.reasoning_switches import translate_switches
from enginebay.server.api.openai.reasoning.thought_plan import MakeParser, check_thoughts, plan_thought
from enginebay.server.api.openai.response_objects import ReasoningObject
from enginebay.server.api.openai.sampling_params import check_unsupported_account_fields, read_constraint, read_sampling
from enginebay.server.api.openai.schemas import ResponsesBody
from enginebay.server.api.openai.template_options import build_template_options
from enginebay.server.api.openai.tool_use import ToolUse, plan_tools
from enginebay.server.encoding.response_writer import ResponseWriter
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import generate_response, prepare_request
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_session import ModelSession


async def create_response(context: ServerContext, request_context: RequestContext) -> None:
    body = decode_body(ResponsesBody, request_context.exchange.body)
    session, lora = await context.acquire_session(request_context, body.model, stream=bool(body.stream))
    request_context.stream = bool(body.stream)
    request_context.prompt = body.input
    request_context.cache_key = body.prompt_cache_key or ""
    try:
        chat = await request_context.run_in_thread_if_large(_read_request, body, session, lora)
    except RequestError as error:
        raise responses_input.to_responses_error(error) from None
    try:
        request, template_options, max_thought_tokens = _apply_switches(request_context, session, body, chat)
        prepared = await prepare_request(
            request_context, session, request,
            truncate=body.truncate_prompt_tokens, requested_max_tokens=body.max_output_tokens, template_options=template_options,
            notes=chat.tools.notes,
        )  # fmt: skip
        planned, make_parser = await plan_thought(
            request_context, session, request, prepared, template_options, chat.tools.make_parser, max_thought_tokens
        )
        writer = _make_writer(request_context, session, body, chat, make_parser)
        await generate_response(request_context, session, writer, [planned])
    except RequestError as error:
        raise responses_input.to_responses_error(chat.tools.rename_param(error)) from None


@dataclass(frozen=True, slots=True)
class _ChatRequest:
    """The body, translated to a chat request."""

    request: GenerateRequest
    tools: ToolUse
    template_options: dict[str, Any]

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling


def _read_request(body: ResponsesBody, session: ModelSession, lora: str | None) -> _ChatRequest:
    check_unsupported_account_fields(body)
    responses_input.check_unsupported_response_fields(body)
    limits = session.limits
    messages = responses_input.to_chat_messages(body, limits)
    generation = responses_input.to_generation_fields(body)
    tools = plan_tools(
        responses_input.to_chat_tools(body.tools), responses_input.to_chat_tool_choice(body.tool_choice), body.parallel_tool_calls, limits, session,
        replace(read_constraint(generation, limits), param="text.format"),
    )  # fmt: skip
    sampling = read_sampling(
        generation, session.sampling_defaults, limits,
        max_tokens=body.max_output_tokens, logprobs=responses_input.read_logprobs(body), guided=tools.guided,
        vocabulary_size=session.client.prompt_encoder.vocabulary_size,
    )  # fmt: skip
    request = GenerateRequest(
        messages=tools.with_preface(messages),
        sampling=sampling,
        lora=lora,
        extras=tools.extras,
        energy=body.wants_energy,
    )
    options = build_template_options(
        body.chat_template_kwargs, tools=tools.template_tools, allow_special_tokens=body.allow_special_tokens
    )
    return _ChatRequest(request, tools, options)


def _apply_switches(
    request_context: RequestContext, session: ModelSession, body: ResponsesBody, chat: _ChatRequest
) -> tuple[GenerateRequest, dict[str, Any], int | None]:
    """Return the request and the template's options with the switches of thinking, and the thought's token limit."""
    switches = translate_switches(request_context, session, read_thinking_fields(body))
    request_context.ignored |= list_ignored_reasoning(body)
    check_thoughts(request_context, session, chat.request.messages or ())
    request = replace(chat.request, extras={**chat.request.extras, **switches.extras})
    return request, chat.template_options | switches.template_options, switches.max_tokens


def _make_writer(
    request_context: RequestContext,
    session: ModelSession,
    body: ResponsesBody,
    chat: _ChatRequest,
    make_parser: MakeParser,
) -> ResponseWriter:
    encoder = ResponseEncoder(
        f"resp_{request_context.id}",
        int(request_context.started_at),
        body.model,
        build_echoed_fields(body, chat.sampling),
        body.wants_energy,
    )
    output = ResponseOutput(
        encoder.id,
        session.next_call_id,
        session.client.prompt_encoder.get_token_bytes,
        encrypts_reasoning="reasoning.encrypted_content" in (body.include or ()),
    )
    parser = OutputParser(make_parser(), session.restore_markers)
    if not request_context.stream:
        return ResponsesJsonWriter(request_context.exchange, session, encoder, output, parser)
    with_logprobs = chat.sampling.logprobs is not None
    return ResponsesSseWriter(
        request_context.exchange, session, ResponseEventEncoder(encoder, output), parser, with_logprobs=with_logprobs
    )


def build_echoed_fields(body: ResponsesBody, sampling: Sampling) -> dict[str, Any]:
    """Return the request fields that the response repeats, with the effective values."""
    text_format = (body.text.format if body.text is not None else None) or {"type": "text"}
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": ReasoningObject(effort=(body.reasoning or {}).get("effort")),
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "temperature": sampling.value("temperature"),
        "text": {"format": text_format, "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": [{"description": None, "parameters": None, "strict": None, **tool} for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling.value("top_p"),
        "user": body.user,
    }
