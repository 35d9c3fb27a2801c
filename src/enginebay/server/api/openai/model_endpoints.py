"""Models, tokens, health and metrics: what is asked about the server rather than of it."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

import msgspec

from enginebay.errors import InvalidRequest, Unsupported
from enginebay.fleet.routing.prompt_encoder import PromptEncoder
from enginebay.server.api.body_decoder import decode_body
from enginebay.server.api.openai.chat_completions import check_message_count
from enginebay.server.api.openai.model_objects import build_model_details, list_model_objects
from enginebay.server.api.openai.schemas import DetokenizeBody, TokenizeBody
from enginebay.server.api.openai.tool_use import plan_tools
from enginebay.server.api.readiness import check_readiness
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_session import ModelSession

_encode = msgspec.json.Encoder().encode


async def list_models(context: ServerContext, request_context: RequestContext) -> None:
    request_context.exchange.respond(200, _encode({"object": "list", "data": list_model_objects(context.catalog)}))


async def get_model(context: ServerContext, request_context: RequestContext) -> None:
    name = unquote(request_context.exchange.path.removeprefix("/v1/models/"), errors="replace")
    offer, _ = context.catalog.find(name)
    request_context.catalog_entry, request_context.model, request_context.labels = (
        offer,
        name,
        (offer.name, offer.primary.kind),
    )
    ahead = await context.fleet.estimate_wait(offer.primary.name)
    request_context.exchange.respond(200, _encode(build_model_details(context.catalog, name, ahead)))


async def tokenize(context: ServerContext, request_context: RequestContext) -> None:
    body = decode_body(TokenizeBody, request_context.exchange.body)
    served, _ = await context.acquire_session(request_context, body.model)
    prompts = _get_prompts(served)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give one of prompt and messages", param="prompt")
    if body.messages is not None:
        check_message_count(body.messages, served.limits)
        await request_context.run_offloaded(plan_tools, body.tools, None, None, served.limits, served)
        options = {} if body.add_generation_prompt is None else {"add_generation_prompt": body.add_generation_prompt}
        text = await prompts.render_async(body.messages, request_context.has_large_body, tools=body.tools, **options)
        ids = await prompts.encode(text, bool(body.add_special_tokens))
    else:
        ids = await prompts.encode(body.prompt or "", body.add_special_tokens is not False)

    def written() -> bytes:
        found: dict[str, object] = {
            "count": len(ids), "max_model_len": served.client.facts.context_length, "tokens": ids
        }  # fmt: skip
        if body.return_token_strs:
            found["token_strs"] = [prompts.get_token_bytes(one).decode("utf-8", "replace") for one in ids]
        return _encode(found)

    request_context.exchange.respond(200, await request_context.run_offloaded(written))


async def detokenize(context: ServerContext, request_context: RequestContext) -> None:
    body = decode_body(DetokenizeBody, request_context.exchange.body)
    served, _ = await context.acquire_session(request_context, body.model)
    prompts = _get_prompts(served)
    known = prompts.vocabulary_size
    if known is not None and body.tokens and max(body.tokens) >= known:
        raise InvalidRequest(f"tokens has ids outside of 0 to {known - 1}", param="tokens")
    text = await asyncio.to_thread(prompts.decode, body.tokens)
    request_context.exchange.respond(200, _encode({"prompt": text}))


def _get_prompts(session: ModelSession) -> PromptEncoder:
    if session.client.spec.renders:
        raise Unsupported(f"{session.name} is tokenized elsewhere", "ask that server", param="model")
    return session.client.prompt_encoder


async def get_liveness(context: ServerContext, request_context: RequestContext) -> None:
    request_context.exchange.respond(200, b'{"status":"live"}')


async def get_readiness(context: ServerContext, request_context: RequestContext) -> None:
    found = await check_readiness(context)
    told: dict[str, object] = {"status": "not ready" if found.reasons else "ready", "models": found.models}
    if found.reasons:
        told["reasons"] = found.reasons
    if found.failing:
        told["failing"] = found.failing
    request_context.exchange.respond(503 if found.reasons else 200, _encode(told))


async def get_metrics(context: ServerContext, request_context: RequestContext) -> None:
    request_context.exchange.respond(200, await context.scrape(), "text/plain; version=0.0.4; charset=utf-8")
