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
from enginebay.contract.messages import Usage
from enginebay.errors import Cancelled, ContextOverflow, InvalidRequest, Unsupported
from enginebay.server.call import Call
from enginebay.server.context import Context
from enginebay.server.endpoints.completions import read_prompts
from enginebay.server.generating import enter, say_headers, too_late
from enginebay.server.served import ServedModel
from enginebay.server.wire.bodies import EmbeddingBody
from enginebay.server.wire.decode import decode

_encode = msgspec.json.Encoder().encode


async def embeddings(context: Context, call: Call) -> None:
    body = decode(EmbeddingBody, call.exchange.body)
    served, _ = await context.model(call, body.model)
    _check_capability(served)
    inputs = await _token_ids(call, served, body)
    say_headers(call)
    found = await _embedded(call, served, inputs)
    call.usage = Usage(prompt_tokens=found.prompt_tokens)
    if call.exchange.closed:
        raise Cancelled("the client closed the connection")
    call.exchange.respond(200, await asyncio.to_thread(_body, body, found))


async def _embedded(call: Call, served: ServedModel, inputs: list[tuple[int, ...]]) -> Embedding:
    """The place is the engine's until it has answered, even if nobody waits any longer."""
    leave = await enter(call, served)
    work = asyncio.ensure_future(served.client.client.embed(inputs))
    work.add_done_callback(lambda _: leave())
    try:
        async with asyncio.timeout(served.limits.request_timeout_s):
            found = await asyncio.shield(work)
    except TimeoutError:
        raise too_late(served, "send fewer texts at once") from None
    served.heard_at = time.monotonic()
    return found


def _body(body: EmbeddingBody, found: Embedding) -> bytes:
    write: Any = as_base64 if body.encoding_format == "base64" else list
    vectors = [_shortened(vector, body.dimensions) for vector in found.vectors]
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


def _check_capability(served: ServedModel) -> None:
    if not served.does("embeddings"):
        raise Unsupported(
            f"{served.name} gives no embeddings",
            "give the model task: embed in the configuration, or serve an embedding model such as minilm", param="model",
        )  # fmt: skip


async def _token_ids(call: Call, served: ServedModel, body: EmbeddingBody) -> list[tuple[int, ...]]:
    prompts = served.client.prompts
    given = await call.beside(read_prompts, body.input, "inputs", served, "input")
    encoded = iter(await prompts.encode_all([one for one in given if isinstance(one, str)]))
    found = [next(encoded) if isinstance(one, str) else one for one in given]
    most = served.client.facts.context_length
    for place, ids in enumerate(found):
        if body.truncate_prompt_tokens is not None and len(ids) > body.truncate_prompt_tokens:
            found[place] = kept = _beginning(ids, body.truncate_prompt_tokens, served)
            call.left_out += len(ids) - len(kept)
            ids = kept
        if not ids:
            raise InvalidRequest("an input to embed is empty", param="input")
        if len(ids) > most:
            raise ContextOverflow(
                f"input {place} has {len(ids)} tokens, and the model's context is {most}",
                "shorten it, or have it cut with truncate_prompt_tokens", param="input",
            )  # fmt: skip
    return found


def _beginning(ids: tuple[int, ...], count: int, served: ServedModel) -> tuple[int, ...]:
    """The first tokens, and the special one that ends the text where the model expects one."""
    tokenizer = served.client.prompts.tokenizer
    if tokenizer is not None and count > 1 and ids[-1] in tokenizer.special_ids:
        return (*ids[: count - 1], ids[-1])
    return ids[:count]


def _shortened(vector: Sequence[float], dimensions: int | None) -> Sequence[float]:
    """The first dimensions, brought back to length 1, as models trained for it expect."""
    if dimensions is None:
        return vector
    if dimensions > len(vector):
        raise InvalidRequest(f"dimensions is {dimensions}, the model has {len(vector)}", param="dimensions")
    kept = vector[:dimensions]
    length = math.sqrt(sum(value * value for value in kept)) or 1.0
    return [value / length for value in kept]


def as_base64(vector: Sequence[float]) -> str:
    """Little-endian 32-bit floats, as OpenAI's clients read them."""
    values = array.array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode("ascii")
