"""POST /v1/embeddings"""

from __future__ import annotations

import array
import asyncio
import base64
import math
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from enginebay.contract import Embedding
from enginebay.contract.engine_messages import Usage
from enginebay.errors import Cancelled, Draining, InvalidRequest, Unsupported, WorkerDied
from enginebay.fleet.routing.prompt_bounds import TextTooLong, make_bound
from enginebay.server.api.body_decoder import read_body
from enginebay.server.api.openai.completions import parse_prompts
from enginebay.server.api.openai.response_objects import EmbeddingListObject, EmbeddingObject, EmbeddingUsageObject
from enginebay.server.api.openai.schemas import EmbeddingBody
from enginebay.server.requests.crash_guard import check_session
from enginebay.server.requests.replica_choice import choose_replica
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import (
    add_translation_headers,
    enter_queue,
    enter_tokenizer,
    make_overflow_error,
    make_timeout_error,
)
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.requests.suspect_table import compute_embed_digest
from enginebay.server.sessions.model_session import ModelSession

_DISCONNECT_S = 0.2  # the token stream notices a dead worker a moment after the call
_encode = msgspec.json.Encoder().encode


async def create_embeddings(context: ServerContext, request_context: RequestContext) -> None:
    body = read_body(EmbeddingBody, context, request_context)
    session, _ = await context.acquire_session(request_context, body.model)
    check_embedding_support(session)
    embedding = await embed_inputs(request_context, session, body)
    if request_context.exchange.closed:
        raise Cancelled("the client closed the connection")
    request_context.exchange.respond(200, await asyncio.to_thread(_encode_response, body, embedding))


async def embed_inputs(request_context: RequestContext, session: ModelSession, body: EmbeddingBody) -> Embedding:
    """Tokenize the inputs, run the engine, and count the usage."""
    inputs = await _tokenize_inputs(request_context, session, body)
    add_translation_headers(request_context)
    embedding = await _run_embed(request_context, session, inputs)
    request_context.usage = Usage(prompt_tokens=embedding.prompt_tokens)
    return embedding


async def _run_embed(
    request_context: RequestContext, session: ModelSession, inputs: list[tuple[int, ...]]
) -> Embedding:
    """Run the engine. The queue slot stays taken until it returns, even after a timeout."""
    guard = request_context.crash_guard
    digest = partial(compute_embed_digest, request_context.variant, inputs)
    trial = guard.find_trial(request_context, digest()) if guard is not None and guard.table else None
    leave = await enter_queue(request_context, session, trial=trial)
    try:
        session, leave = choose_replica(request_context, session, leave, trial=trial)
        check_session(session)
    except Draining:
        leave()
        if trial is not None:
            trial.end()
        raise
    work = asyncio.ensure_future(session.client.client.embed(inputs))
    work.add_done_callback(lambda _: leave())
    if trial is not None:
        started_at = time.monotonic()
        trial.watch(lambda: started_at)  # it has no first token
    try:
        async with asyncio.timeout(session.limits.request_timeout_s):
            embedding = await asyncio.shield(work)
        if guard is not None and trial is not None:
            guard.settle(request_context, session, trial, None, digest)
    except TimeoutError:
        raise make_timeout_error(session, "send fewer texts at once") from None
    except WorkerDied as error:
        await asyncio.sleep(_DISCONNECT_S)
        raise guard.settle(request_context, session, trial, error, digest) or error if guard is not None else error
    finally:
        if trial is not None:
            trial.end()
    session.last_token_at = time.monotonic()
    return embedding


def _encode_response(body: EmbeddingBody, embedding: Embedding) -> bytes:
    encode_vector: Any = to_base64 if body.encoding_format == "base64" else list
    vectors = [truncate_vector(vector, body.dimensions) for vector in embedding.vectors]
    return _encode(
        EmbeddingListObject(
            data=[
                EmbeddingObject(index=index, embedding=encode_vector(vector)) for index, vector in enumerate(vectors)
            ],
            model=body.model,
            usage=EmbeddingUsageObject(embedding.prompt_tokens, embedding.prompt_tokens),
        )
    )


def check_embedding_support(session: ModelSession) -> None:
    if not session.supports("embeddings"):
        raise Unsupported(
            f"{session.name} does not support embeddings",
            "set task: embed for the model in the configuration, or serve an embedding model such as minilm", param="model",
        )  # fmt: skip


async def _tokenize_inputs(
    request_context: RequestContext, session: ModelSession, body: EmbeddingBody
) -> list[tuple[int, ...]]:
    prompt_encoder = session.client.prompt_encoder
    prompts = await request_context.run_in_thread_if_large(parse_prompts, body.input, "inputs", session, "input")
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    context_length = session.client.facts.context_length
    bound = make_bound(context_length, body.truncate_prompt_tokens, keep="first")
    async with enter_tokenizer(request_context):
        try:
            texts = [await prompt_encoder.apply_bound(text, bound) for text in texts]
        except TextTooLong as error:
            raise make_overflow_error("input", f"at least {error.min_tokens}", context_length) from None
        encoded = iter(await prompt_encoder.encode_all(texts))
    request_context.text_cut = bound.cut
    inputs = [next(encoded) if isinstance(prompt, str) else prompt for prompt in prompts]
    for index, ids in enumerate(inputs):
        if body.truncate_prompt_tokens is not None and len(ids) > body.truncate_prompt_tokens:
            inputs[index] = truncated = _truncate_tokens(ids, body.truncate_prompt_tokens, session)
            request_context.truncated_tokens += len(ids) - len(truncated)
            ids = truncated
        if not ids:
            raise InvalidRequest("input has an empty entry", param="input")
        if len(ids) > context_length:
            raise make_overflow_error("input", str(len(ids)), context_length)
    return inputs


def _truncate_tokens(ids: tuple[int, ...], count: int, session: ModelSession) -> tuple[int, ...]:
    """Keep the first tokens, and the special token at the end if there is one."""
    tokenizer = session.client.prompt_encoder.tokenizer
    if tokenizer is not None and count > 1 and ids[-1] in tokenizer.special_ids:
        return (*ids[: count - 1], ids[-1])
    return ids[:count]


def truncate_vector(vector: Sequence[float], dimensions: int | None) -> Sequence[float]:
    """Keep the first dimensions and normalize, as Matryoshka models expect."""
    if dimensions is None:
        return vector
    if dimensions > len(vector):
        raise InvalidRequest(f"dimensions is {dimensions}, but the model has {len(vector)}", param="dimensions")
    truncated = vector[:dimensions]
    norm = math.sqrt(sum(value * value for value in truncated)) or 1.0
    return [value / norm for value in truncated]


def to_base64(vector: Sequence[float]) -> str:
    """Encode as little-endian 32-bit floats, as OpenAI's clients expect."""
    values = array.array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode("ascii")
