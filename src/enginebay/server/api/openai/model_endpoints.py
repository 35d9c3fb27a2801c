"""GET /v1/models and /v1/models/{id}, POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from functools import partial
from urllib.parse import unquote

import msgspec

from enginebay.errors import InvalidRequest, Unsupported
from enginebay.fleet.routing.prompt_bounds import PromptBound, TextTooLong, get_tokenize_limit
from enginebay.fleet.routing.prompt_encoder import PromptEncoder
from enginebay.server.api.body_decoder import read_body
from enginebay.server.api.openai.chat_plan import check_message_count
from enginebay.server.api.openai.model_objects import build_model_details, list_model_objects
from enginebay.server.api.openai.response_objects import DetokenizedObject, ModelListObject, TokenizedObject
from enginebay.server.api.openai.schemas import DetokenizeBody, TokenizeBody
from enginebay.server.api.openai.tool_use import plan_tools
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import add_translation_headers, enter_tokenizer
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_session import ModelSession

_encode = msgspec.json.Encoder().encode


async def list_models(context: ServerContext, request_context: RequestContext) -> None:
    request_context.exchange.respond(200, _encode(ModelListObject(data=list_model_objects(context.catalog))))


async def get_model(context: ServerContext, request_context: RequestContext) -> None:
    name = unquote(request_context.exchange.path.removeprefix("/v1/models/").removesuffix("/"), errors="replace")
    entry, _ = context.catalog.find(name)
    request_context.catalog_entry, request_context.model = entry, name
    request_context.labels = (entry.name, entry.primary.kind)
    estimate = await context.fleet.estimate_wait(entry.primary.name)
    request_context.exchange.respond(200, _encode(build_model_details(context.catalog, name, estimate)))


async def tokenize(context: ServerContext, request_context: RequestContext) -> None:
    body = read_body(TokenizeBody, context, request_context)
    session, _ = await context.acquire_session(request_context, body.model)
    prompt_encoder = _get_prompt_encoder(session)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("send either prompt or messages", param="prompt")
    await request_context.run_in_thread_if_large(plan_tools, body.tools, None, None, session.limits, session)
    if body.messages is not None:
        check_message_count(body.messages, session.limits)
        options = {} if body.add_generation_prompt is None else {"add_generation_prompt": body.add_generation_prompt}
        encode = partial(
            prompt_encoder.encode_chat,
            body.messages, {"tools": body.tools, **options}, request_context.has_large_body,
            body.allow_special_tokens, bool(body.add_special_tokens),
        )  # fmt: skip
    else:
        encode = partial(
            prompt_encoder.encode_text,
            body.prompt or "",
            body.add_special_tokens is not False,
            allow_special_tokens=body.allow_special_tokens is not False,
        )
    limit = get_tokenize_limit(session.client.facts.context_length)
    param = "prompt" if body.messages is None else "messages"
    try:
        async with enter_tokenizer(request_context):
            ids = await encode(bound=PromptBound(limit))
    except TextTooLong as error:
        raise _make_limit_error(param, f"at least {error.min_tokens}", limit) from None
    if len(ids) > limit:
        raise _make_limit_error(param, str(len(ids)), limit)

    def encode_response() -> bytes:
        response = TokenizedObject(len(ids), session.client.facts.context_length, ids)
        if body.return_token_strs:
            token_bytes = prompt_encoder.get_token_bytes
            response.token_strs = [token_bytes(token_id).decode("utf-8", "replace") for token_id in ids]
        return _encode(response)

    add_translation_headers(request_context)
    request_context.exchange.respond(200, await request_context.run_in_thread_if_large(encode_response))


async def detokenize(context: ServerContext, request_context: RequestContext) -> None:
    body = read_body(DetokenizeBody, context, request_context)
    session, _ = await context.acquire_session(request_context, body.model)
    prompt_encoder = _get_prompt_encoder(session)
    limit = get_tokenize_limit(session.client.facts.context_length)
    if len(body.tokens) > limit:
        raise _make_limit_error("tokens", str(len(body.tokens)), limit)
    vocabulary_size = prompt_encoder.vocabulary_size
    if vocabulary_size is not None and body.tokens and max(body.tokens) >= vocabulary_size:
        raise InvalidRequest(f"tokens has ids outside 0 to {vocabulary_size - 1}", param="tokens")
    text = await asyncio.to_thread(prompt_encoder.decode, body.tokens)
    add_translation_headers(request_context)
    request_context.exchange.respond(200, _encode(DetokenizedObject(text)))


def _make_limit_error(param: str, tokens: str, limit: int) -> InvalidRequest:
    """The limit follows from the context of the model, so it has no name in the configuration."""
    message = f"{param} has {tokens} tokens; the maximum for this model is {limit}"
    return InvalidRequest(message, "send it in parts", param=param)


def _get_prompt_encoder(session: ModelSession) -> PromptEncoder:
    if session.client.spec.renders:
        raise Unsupported(
            f"{session.name} is tokenized by a remote server", "send the request to that server", param="model"
        )
    return session.client.prompt_encoder
