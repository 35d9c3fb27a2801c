"""POST /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import InvalidRequest, RequestError, Unsupported
from enginebay.fleet.routing.prompt_bounds import PromptBound, TextTooLong, get_tokenize_limit
from enginebay.server.api.body_decoder import get_unknown_fields, read_body
from enginebay.server.api.fields.hosted_tools import drop_hosted_tools
from enginebay.server.api.fields.unknown_fields import note_unknown_keys
from enginebay.server.api.openai import responses_input
from enginebay.server.api.openai.encoders.responses_encoder import ResponseEncoder, ResponseEventEncoder
from enginebay.server.api.openai.encoders.responses_output import OutputParser, ResponseOutput
from enginebay.server.api.openai.encoders.responses_writers import ResponsesJsonWriter, ResponsesSseWriter
from enginebay.server.api.openai.reasoning.reasoning_items import list_ignored_reasoning, read_thinking_fields
from enginebay.server.api.openai.reasoning.reasoning_switches import THINKING_KEYS, translate_switches
from enginebay.server.api.openai.reasoning.thought_plan import MakeParser, check_thoughts, plan_thought
from enginebay.server.api.openai.response_objects import ConversationReferenceObject, ReasoningObject
from enginebay.server.api.openai.responses_api.background import move_to_background
from enginebay.server.api.openai.responses_api.state_schemas import InputTokensObject
from enginebay.server.api.openai.responses_api.tool_names import ToolExpansion, expand_tools
from enginebay.server.api.openai.responses_api.turn import (
    ResponseTurn,
    begin_turn,
    read_conversation_id,
    store_turn,
)
from enginebay.server.api.openai.sampling_params import read_constraint, read_sampling
from enginebay.server.api.openai.schemas import ResponsesBody
from enginebay.server.api.openai.template_options import build_template_options
from enginebay.server.api.openai.tool_use import ToolUse, plan_tools
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import (
    add_translation_headers,
    enter_tokenizer,
    generate_response,
    prepare_request,
)
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_session import ModelSession

_encode = msgspec.json.Encoder().encode


async def create_response(context: ServerContext, request_context: RequestContext) -> None:
    body = _read_body(context, request_context)
    turn = await _begin_turn(context, request_context, body)
    if body.background and context.catalog.find(body.model)[0].primary.live_session is None:  # a load may take minutes
        await _ensure_background(context, request_context, body, turn, Sampling())
    session, lora = await context.acquire_session(request_context, body.model, stream=bool(body.stream))
    request_context.stream = bool(body.stream)
    chat = await _plan_response(context, request_context, session, lora, body, turn)
    if body.background:
        await _ensure_background(context, request_context, body, turn, chat.sampling)
    writer = _make_writer(request_context, session, body, chat, turn)
    background = request_context.background
    writer.defers_end = turn.stores
    if background is not None:
        background.begin()
    try:
        await generate_response(request_context, session, writer, [chat.request])
    except RequestError as error:
        raise responses_input.to_responses_error(chat.tools.rename_param(error)) from None
    if writer.response is None:  # it failed after a part of it was sent
        if background is not None and request_context.error is not None:
            background.fail(request_context.error)
        return
    if not writer.defers_end:
        return
    if background is not None:
        writer.write_end()  # the last events are stored before the status
        await background.finish(writer.response)
        return
    await store_turn(context, request_context, turn, writer.response)
    writer.write_end()


def _read_body(context: ServerContext, request_context: RequestContext) -> ResponsesBody:
    """Return the body without what the server leaves out, which is noted."""
    body = read_body(ResponsesBody, context, request_context)
    request_context.prompt = body.input
    request_context.cache_key = body.prompt_cache_key or ""
    responses_input.note_includes(body, request_context.ignored)
    body.tools = drop_hosted_tools(body.tools, request_context.ignored)
    unknown = get_unknown_fields(context, request_context)
    if body.text is not None and body.text.format is not None:
        note_unknown_keys(body.text.format, responses_input.FORMAT_KEYS, "text.format", unknown)
    if isinstance(body.thinking, dict):
        note_unknown_keys(body.thinking, THINKING_KEYS, "thinking", unknown)
    request_context.ignored |= list_ignored_reasoning(body, refuse_unknown=unknown is None)
    return body


async def _begin_turn(context: ServerContext, request_context: RequestContext, body: ResponsesBody) -> ResponseTurn:
    if request_context.background is not None:  # another attempt
        turn = request_context.background.turn
        request_context.history_bytes = turn.history_bytes
        return turn
    turn = await begin_turn(
        context,
        request_context,
        body.input,
        body.previous_response_id,
        read_conversation_id(body.conversation),
        body.store,
    )
    if body.background and context.state is None:
        raise Unsupported(
            "background responses need stored state, and server.state is off",
            "remove background, or set stream to true to see progress", param="background",
        )  # fmt: skip
    if body.background and not turn.stores:
        raise InvalidRequest("background requires store", "remove store, or set it to true", param="background")
    return turn


async def _ensure_background(
    context: ServerContext, request_context: RequestContext, body: ResponsesBody, turn: ResponseTurn, sampling: Sampling
) -> None:
    if request_context.background is None:
        queued = _make_encoder(request_context, body, sampling, turn).encode_in_progress()
        await move_to_background(context, request_context, turn, queued, streams=bool(body.stream))


async def count_input_tokens(context: ServerContext, request_context: RequestContext) -> None:
    """POST /v1/responses/input_tokens"""
    body = _read_body(context, request_context)
    turn = await begin_turn(
        context, request_context, body.input, body.previous_response_id, read_conversation_id(body.conversation)
    )
    session, lora = await context.acquire_session(request_context, body.model)
    if session.client.spec.renders:
        raise Unsupported(
            f"{session.name} is tokenized by a remote server", "send the request to that server", param="model"
        )
    chat = await _read_chat(context, request_context, session, lora, body, turn)
    limit = get_tokenize_limit(session.client.facts.context_length)
    try:
        request, template_options, max_thought_tokens = _apply_switches(request_context, session, body, chat)
        async with enter_tokenizer(request_context):
            ids = await session.client.prompt_encoder.encode_request(
                request, request_context.has_large_body, PromptBound(limit), **template_options
            )
        prepared = GenerateRequest(token_ids=tuple(ids), sampling=request.sampling, lora=lora)
        planned, _ = await plan_thought(
            request_context, session, request, prepared, template_options, chat.tools.make_parser, max_thought_tokens
        )
    except TextTooLong as error:
        raise InvalidRequest(
            f"input has at least {error.min_tokens} tokens; the maximum is {limit}", param="input"
        ) from None
    except RequestError as error:
        raise responses_input.to_responses_error(chat.tools.rename_param(error)) from None
    request_context.translated |= {**chat.tools.notes, **chat.expansion.notes}
    add_translation_headers(request_context)
    counted = len(planned.token_ids or ids)
    request_context.exchange.respond(200, _encode(InputTokensObject(input_tokens=counted)))


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """The body, translated to a chat request."""

    request: GenerateRequest
    tools: ToolUse
    expansion: ToolExpansion
    template_options: dict[str, Any]
    make_parser: MakeParser

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling


async def _plan_response(
    context: ServerContext,
    request_context: RequestContext,
    session: ModelSession,
    lora: str | None,
    body: ResponsesBody,
    turn: ResponseTurn,
) -> ResponsePlan:
    chat = await _read_chat(context, request_context, session, lora, body, turn)
    try:
        request, template_options, max_thought_tokens = _apply_switches(request_context, session, body, chat)
        prepared = await prepare_request(
            request_context, session, request,
            truncate=body.truncate_prompt_tokens, requested_max_tokens=body.max_output_tokens, max_tokens_param="max_output_tokens",
            template_options=template_options, notes={**chat.tools.notes, **chat.expansion.notes},
        )  # fmt: skip
        planned, make_parser = await plan_thought(
            request_context, session, request, prepared, template_options, chat.tools.make_parser, max_thought_tokens
        )
    except RequestError as error:
        raise responses_input.to_responses_error(chat.tools.rename_param(error)) from None
    return replace(chat, request=planned, make_parser=make_parser)


async def _read_chat(
    context: ServerContext,
    request_context: RequestContext,
    session: ModelSession,
    lora: str | None,
    body: ResponsesBody,
    turn: ResponseTurn,
) -> ResponsePlan:
    unknown = get_unknown_fields(context, request_context)
    try:
        return await request_context.run_in_thread_if_large(_read_request, body, session, lora, turn, unknown)
    except RequestError as error:
        raise responses_input.to_responses_error(error) from None


def _read_request(
    body: ResponsesBody,
    session: ModelSession,
    lora: str | None,
    turn: ResponseTurn,
    unknown: responses_input.UnknownFields,
) -> ResponsePlan:
    responses_input.check_stream_options(body)
    limits = session.limits
    messages = responses_input.to_chat_messages(body.instructions, turn.inputs, limits, turn.history, unknown)
    generation = responses_input.to_generation_fields(body)
    expansion = expand_tools(body.tools)
    tools = plan_tools(
        responses_input.to_chat_tools(expansion.tools, unknown), responses_input.to_chat_tool_choice(body.tool_choice), body.parallel_tool_calls, limits, session,
        replace(read_constraint(generation, limits), param="text.format"),
    )  # fmt: skip
    sampling = read_sampling(
        generation, session.sampling_defaults, limits,
        max_tokens=body.max_output_tokens, max_tokens_param="max_output_tokens", logprobs=responses_input.read_logprobs(body), guided=tools.guided,
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
    return ResponsePlan(request, tools, expansion, options, tools.make_parser)


def _make_encoder(
    request_context: RequestContext, body: ResponsesBody, sampling: Sampling, turn: ResponseTurn
) -> ResponseEncoder:
    conversation = ConversationReferenceObject(turn.conversation) if turn.conversation is not None else None
    state_fields = {
        "store": turn.stores, "previous_response_id": turn.previous, "conversation": conversation, "background": bool(body.background),
    }  # fmt: skip
    return ResponseEncoder(
        turn.id,
        int(request_context.started_at),
        body.model,
        {**build_echoed_fields(body, sampling), **state_fields},
        body.wants_energy,
    )


def _apply_switches(
    request_context: RequestContext, session: ModelSession, body: ResponsesBody, chat: ResponsePlan
) -> tuple[GenerateRequest, dict[str, Any], int | None]:
    """Return the request and the template's options with the thinking switches, and the thought's token limit."""
    switches = translate_switches(request_context, session, read_thinking_fields(body))
    check_thoughts(request_context, session, chat.request.messages or ())
    request = replace(chat.request, extras={**chat.request.extras, **switches.extras})
    return request, chat.template_options | switches.template_options, switches.max_tokens


def _make_writer(
    request_context: RequestContext, session: ModelSession, body: ResponsesBody, chat: ResponsePlan, turn: ResponseTurn
) -> ResponsesJsonWriter | ResponsesSseWriter:
    encoder = _make_encoder(request_context, body, chat.sampling, turn)
    output = ResponseOutput(
        encoder.id,
        session.next_call_id,
        session.client.prompt_encoder.get_token_bytes,
        chat.expansion.find,
        encrypts_reasoning="reasoning.encrypted_content" in (body.include or ()),
    )
    parser = OutputParser(chat.make_parser(), session.restore_markers)
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
        "presence_penalty": _read_number(sampling, "presence_penalty", 0.0),
        "frequency_penalty": _read_number(sampling, "frequency_penalty", 0.0),
        "temperature": _read_number(sampling, "temperature", 1.0),
        "text": {"format": text_format, "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": [_echo_tool(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": _read_number(sampling, "top_p", 1.0),
        "user": body.user,
    }


def _read_number(sampling: Sampling, name: str, neutral: float) -> float:
    """Return the effective value: what is unset has no effect."""
    value = sampling.value(name)
    return neutral if value is None else float(value)


def _echo_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}
