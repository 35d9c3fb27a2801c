"""POST /v1/embeddings"""

from __future__ import annotations

import array
import asyncio
import base64
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from enginebay.contract import Embedding
from enginebay.contract.engine_messages import Usage
from enginebay.errors import Cancelled, ContextOverflow, InvalidRequest, Unsupported
from enginebay.server.api.body_decoder import decode_body
from enginebay.server.api.openai.completions import parse_prompts
from enginebay.server.api.openai.schemas import EmbeddingBody
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import add_translation_headers, enter_queue, make_timeout_error
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_session import ModelSession

_encode = msgspec.json.Encoder().encode


async def create_embeddings(context: ServerContext, request_context: RequestContext) -> None:
    body = decode_body(EmbeddingBody, request_context.exchange.body)
    served, _ = await context.acquire_session(request_context, body.model)
    _check_capability(served)
    inputs = await _tokenize_inputs(request_context, served, body)
    add_translation_headers(request_context)
    found = await _run_embed(request_context, served, inputs)
    request_context.usage = Usage(prompt_tokens=found.prompt_tokens)
    if request_context.exchange.closed:
        raise Cancelled("the client closed the connection")
    request_context.exchange.respond(200, await asyncio.to_thread(_encode_response, body, found))


async def _run_embed(
    request_context: RequestContext, session: ModelSession, inputs: list[tuple[int, ...]]
) -> Embedding:
    """The place is the engine's until it has answered, even if nobody waits any longer."""
    leave = await enter_queue(request_context, session)
    work = asyncio.ensure_future(session.client.client.embed(inputs))
    work.add_done_callback(lambda _: leave())
    try:
        async with asyncio.timeout(session.limits.request_timeout_s):
            found = await asyncio.shield(work)
    except TimeoutError:
        raise make_timeout_error(session, "send fewer texts at once") from None
    session.last_token_at = time.monotonic()
    return found


def _encode_response(body: EmbeddingBody, found: Embedding) -> bytes:
    write: Any = to_base64 if body.encoding_format == "base64" else list
    vectors = [_truncate_vector(vector, body.dimensions) for vector in found.vectors]
    return _encode(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": write(vector)}
                for index, vector in enumerate(vectors)
            ],
            "model": body.model,
            "usage": {"prompt_tokens": found.prompt_tokens, "total_tokens": found.prompt_tokens},
        }
    )


def _check_capability(session: ModelSession) -> None:
    if not session.supports("embeddings"):
        raise Unsupported(
            f"{session.name} gives no embeddings",
            "give the model task: embed in the configuration, or serve an embedding model such as minilm", param="model",
        )  # fmt: skip


async def _tokenize_inputs(
    request_context: RequestContext, session: ModelSession, body: EmbeddingBody
) -> list[tuple[int, ...]]:
    prompts = session.client.prompt_encoder
    given = await request_context.run_offloaded(parse_prompts, body.input, "inputs", session, "input")
    encoded = iter(await prompts.encode_all([one for one in given if isinstance(one, str)]))
    found = [next(encoded) if isinstance(one, str) else one for one in given]
    most = session.client.facts.context_length
    for place, ids in enumerate(found):
        if body.truncate_prompt_tokens is not None and len(ids) > body.truncate_prompt_tokens:
            found[place] = kept = _truncate_tokens(ids, body.truncate_prompt_tokens, session)
            request_context.truncated_tokens += len(ids) - len(kept)
            ids = kept
        if not ids:
            raise InvalidRequest("an input to embed is empty", param="input")
        if len(ids) > most:
            raise ContextOverflow(
                f"input {place} has {len(ids)} tokens, and the model's context is {most}",
                "shorten it, or have it cut with truncate_prompt_tokens", param="input",
            )  # fmt: skip
    return found


def _truncate_tokens(ids: tuple[int, ...], count: int, session: ModelSession) -> tuple[int, ...]:
    """The first tokens, and the special one that ends the text where the model expects one."""
    tokenizer = session.client.prompt_encoder.tokenizer
    if tokenizer is not None and count > 1 and ids[-1] in tokenizer.special_ids:
        return (*ids[: count - 1], ids[-1])
    return ids[:count]


def _truncate_vector(vector: Sequence[float], dimensions: int | None) -> Sequence[float]:
    """The first dimensions, brought back to length 1, as models trained for it expect."""
    if dimensions is None:
        return vector
    if dimensions > len(vector):
        raise InvalidRequest(f"dimensions is {dimensions}, the model has {len(vector)}", param="dimensions")
    kept = vector[:dimensions]
    length = math.sqrt(sum(value * value for value in kept)) or 1.0
    return [value / length for value in kept]


def to_base64(vector: Sequence[float]) -> str:
    """Little-endian 32-bit floats, as OpenAI's clients read them."""
    values = array.array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode("ascii")
