"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import msgspec

from enginebay.errors import RequestError
from enginebay.server.api.anthropic.message_encoder import MessageEncoder
from enginebay.server.api.anthropic.message_objects import TokenCountObject
from enginebay.server.api.anthropic.message_writers import MessageJsonWriter, MessageSseWriter
from enginebay.server.api.anthropic.messages_input import (
    TranslatedMessages,
    read_session,
    rename_notes,
    to_messages_error,
    translate_messages,
)
from enginebay.server.api.anthropic.schemas import CountTokensBody, MessagesBody, MessagesPrompt
from enginebay.server.api.body_decoder import get_unknown_fields, read_body
from enginebay.server.api.openai.chat_plan import ChatPlan, count_chat_tokens, plan_chat
from enginebay.server.encoding.response_writer import ResponseWriter, estimate_prompt_tokens
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import add_translation_headers, generate_response
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_session import ModelSession

_encode = msgspec.json.Encoder().encode


async def create_message(context: ServerContext, request_context: RequestContext) -> None:
    body = read_body(MessagesBody, context, request_context)
    session, lora = await context.acquire_session(request_context, body.model, stream=bool(body.stream))
    request_context.stream = bool(body.stream)
    request_context.prompt = body.messages
    request_context.cache_key = read_session(body.metadata)
    try:
        translated = await _translate(context, request_context, session, body)
        plan = await plan_chat(request_context, session, lora, translated.chat)
        _add_notes(request_context, translated)
        writer = _make_writer(request_context, session, body, translated, plan)
        try:
            await generate_response(request_context, session, writer, [plan.request])
        except RequestError as error:
            raise plan.rename_param(error) from None
    except RequestError as error:
        raise to_messages_error(error) from None


async def count_tokens(context: ServerContext, request_context: RequestContext) -> None:
    body = read_body(CountTokensBody, context, request_context)
    session, _ = await context.acquire_session(request_context, body.model)
    try:
        translated = await _translate(context, request_context, session, body)
        tokens = await count_chat_tokens(request_context, session, translated.chat)
    except RequestError as error:
        raise to_messages_error(error) from None
    _add_notes(request_context, translated)
    add_translation_headers(request_context)
    request_context.exchange.respond(200, _encode(TokenCountObject(tokens)))


async def _translate(
    context: ServerContext, request_context: RequestContext, session: ModelSession, body: MessagesPrompt
) -> TranslatedMessages:
    accepts_images = session.client.spec.renders  # a remote server may accept them; others take text only
    refuses_unknown = get_unknown_fields(context, request_context) is None
    return await request_context.run_in_thread_if_large(
        translate_messages, body, session.limits, accepts_images, refuses_unknown
    )


def _add_notes(request_context: RequestContext, translated: TranslatedMessages) -> None:
    notes = translated.notes
    if "anthropic-beta" in request_context.exchange.headers:
        notes.ignore("anthropic-beta", "the server does not use it")
    request_context.ignored = {**rename_notes(request_context.ignored), **notes.list_ignored()}
    request_context.translated = {**rename_notes(request_context.translated), **notes.translated}


def _make_writer(
    request_context: RequestContext,
    session: ModelSession,
    body: MessagesBody,
    translated: TranslatedMessages,
    plan: ChatPlan,
) -> ResponseWriter:
    encoder = MessageEncoder(f"msg_{request_context.id}", body.model, translated.hides_thinking)
    stop_sequences, parser = body.stop_sequences or (), plan.make_parser()
    if not request_context.stream:
        return MessageJsonWriter(request_context.exchange, session, encoder, parser, stop_sequences)
    prompt_tokens = estimate_prompt_tokens(plan.request)
    return MessageSseWriter(request_context.exchange, session, encoder, parser, stop_sequences, prompt_tokens)
