"""Models, tokens, health and metrics: what is asked about the server rather than of it."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

import msgspec

from enginebay.errors import InvalidRequest, Unsupported
from enginebay.fleet.prompts import Prompts
from enginebay.server.call import Call
from enginebay.server.context import Context
from enginebay.server.endpoints.chat import check_length
from enginebay.server.model_cards import described, listed
from enginebay.server.readiness import look
from enginebay.server.served import ServedModel
from enginebay.server.tool_use import plan_tools
from enginebay.server.wire.bodies import DetokenizeBody, TokenizeBody
from enginebay.server.wire.decode import decode

_encode = msgspec.json.Encoder().encode


async def list_models(context: Context, call: Call) -> None:
    call.exchange.respond(200, _encode({"object": "list", "data": listed(context.catalogue)}))


async def show_model(context: Context, call: Call) -> None:
    name = unquote(call.exchange.path.removeprefix("/v1/models/"), errors="replace")
    offer, _ = context.catalogue.find(name)
    call.offer, call.model, call.labels = offer, name, (offer.name, offer.first.kind)
    ahead = await context.fleet.look_ahead(offer.first.name)
    call.exchange.respond(200, _encode(described(context.catalogue, name, ahead)))


async def tokenize(context: Context, call: Call) -> None:
    body = decode(TokenizeBody, call.exchange.body)
    served, _ = await context.model(call, body.model)
    prompts = _prompts(served)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give one of prompt and messages", param="prompt")
    if body.messages is not None:
        check_length(body.messages, served.limits)
        await call.beside(plan_tools, body.tools, None, None, served.limits, served)
        options = {} if body.add_generation_prompt is None else {"add_generation_prompt": body.add_generation_prompt}
        text = await prompts.rendered(body.messages, call.large, tools=body.tools, **options)
        ids = await prompts.encode(text, bool(body.add_special_tokens))
    else:
        ids = await prompts.encode(body.prompt or "", body.add_special_tokens is not False)

    def written() -> bytes:
        found: dict[str, object] = {
            "count": len(ids), "max_model_len": served.client.facts.context_length, "tokens": ids
        }  # fmt: skip
        if body.return_token_strs:
            found["token_strs"] = [prompts.token_bytes(one).decode("utf-8", "replace") for one in ids]
        return _encode(found)

    call.exchange.respond(200, await call.beside(written))


async def detokenize(context: Context, call: Call) -> None:
    body = decode(DetokenizeBody, call.exchange.body)
    served, _ = await context.model(call, body.model)
    prompts = _prompts(served)
    known = prompts.vocabulary_size
    if known is not None and body.tokens and max(body.tokens) >= known:
        raise InvalidRequest(f"tokens has ids outside of 0 to {known - 1}", param="tokens")
    text = await asyncio.to_thread(prompts.decode, body.tokens)
    call.exchange.respond(200, _encode({"prompt": text}))


def _prompts(served: ServedModel) -> Prompts:
    if served.client.spec.renders:
        raise Unsupported(f"{served.name} is tokenized elsewhere", "ask that server", param="model")
    return served.client.prompts


async def live(context: Context, call: Call) -> None:
    call.exchange.respond(200, b'{"status":"live"}')


async def ready(context: Context, call: Call) -> None:
    found = await look(context)
    told: dict[str, object] = {"status": "not ready" if found.reasons else "ready", "models": found.models}
    if found.reasons:
        told["reasons"] = found.reasons
    if found.failing:
        told["failing"] = found.failing
    call.exchange.respond(503 if found.reasons else 200, _encode(told))


async def metrics(context: Context, call: Call) -> None:
    call.exchange.respond(200, await context.scrape(), "text/plain; version=0.0.4; charset=utf-8")
