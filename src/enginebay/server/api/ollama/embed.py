"""POST /api/embed and /api/embeddings"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence

import msgspec

from enginebay.contract import Embedding
from enginebay.errors import Cancelled
from enginebay.server.api.body_decoder import read_body
from enginebay.server.api.ollama.generation import read_options, resolve_model
from enginebay.server.api.ollama.keep_alive import KeepAlivePlan
from enginebay.server.api.ollama.ollama_encoder import to_nanoseconds
from enginebay.server.api.ollama.schemas import (
    OllamaBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaEmbeddingsObject,
    OllamaEmbedObject,
)
from enginebay.server.api.openai.embeddings import check_embedding_support, embed_inputs, truncate_vector
from enginebay.server.api.openai.schemas import EmbeddingBody
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import add_translation_headers
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_session import ModelSession

_encode = msgspec.json.Encoder().encode


async def embed(context: ServerContext, request_context: RequestContext) -> None:
    body = read_body(OllamaEmbedBody, context, request_context)
    keep_alive = KeepAlivePlan(context, request_context, body.keep_alive)
    session = await _acquire_embedder(context, request_context, body)
    submitted_at = time.perf_counter()
    embedding = Embedding((), 0)
    if body.input:  # else it only loads the model
        truncate = None if body.truncate is False else session.client.facts.context_length
        inputs = EmbeddingBody(model=session.name, input=body.input, truncate_prompt_tokens=truncate)
        embedding = await embed_inputs(request_context, session, inputs)
    else:
        add_translation_headers(request_context)
    received_at = request_context.exchange.received_at
    encoded = await asyncio.to_thread(_encode_vectors, body, embedding, received_at, submitted_at)
    _respond(request_context, encoded)
    await keep_alive.apply()


async def embed_prompt(context: ServerContext, request_context: RequestContext) -> None:
    """The older endpoint: one prompt, and its vector as the engine computes it."""
    body = read_body(OllamaEmbeddingsBody, context, request_context)
    keep_alive = KeepAlivePlan(context, request_context, body.keep_alive)
    session = await _acquire_embedder(context, request_context, body)
    vector: Sequence[float] = ()
    if body.prompt:
        truncate = session.client.facts.context_length
        inputs = EmbeddingBody(model=session.name, input=body.prompt, truncate_prompt_tokens=truncate)
        vector = (await embed_inputs(request_context, session, inputs)).vectors[0]
    else:
        add_translation_headers(request_context)
    _respond(request_context, _encode(OllamaEmbeddingsObject(list(vector))))
    await keep_alive.apply()


async def _acquire_embedder(context: ServerContext, request_context: RequestContext, body: OllamaBody) -> ModelSession:
    options = read_options(context, request_context, body.options)
    for name in options.__struct_fields__:
        if getattr(options, name) is not None:
            request_context.ignored[f"options.{name}"] = "embeddings have no such option"
    session, _ = await context.acquire_session(request_context, resolve_model(context.catalog, body.model))
    check_embedding_support(session)
    return session


def _respond(request_context: RequestContext, encoded: bytes) -> None:
    if request_context.exchange.closed:
        raise Cancelled("the client closed the connection")
    request_context.exchange.respond(200, encoded)


def _encode_vectors(body: OllamaEmbedBody, embedding: Embedding, received_at: float, submitted_at: float) -> bytes:
    vectors = [normalize(truncate_vector(vector, body.dimensions or None)) for vector in embedding.vectors]
    return _encode(
        OllamaEmbedObject(
            model=body.model,
            embeddings=vectors,
            total_duration=to_nanoseconds(time.perf_counter() - received_at),
            load_duration=to_nanoseconds(submitted_at - received_at),
            prompt_eval_count=embedding.prompt_tokens,
        )
    )


def normalize(vector: Sequence[float]) -> list[float]:
    norm = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / norm for value in vector]
