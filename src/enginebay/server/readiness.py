"""Would a request be answered now? A token made lately proves it; otherwise one is asked for."""

from __future__ import annotations

import asyncio
import time

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import EnginebayError
from enginebay.server.context import Context
from enginebay.server.served import ServedModel

_PROOF_S = 30.0  # so long a token is proof
_PATIENCE_S = 10.0


async def not_ready(context: Context) -> list[str]:
    """Why a request might not be answered; empty when it would be."""
    if context.draining:
        return ["the server is stopping"]
    models = list(context.catalogue.models.values())
    if not models:
        return ["no model is loaded"]
    found = await asyncio.gather(*map(_problem, models))
    return [f"{model.name}: {problem}" for model, problem in zip(models, found, strict=True) if problem]


async def _problem(model: ServedModel) -> str:
    if model.gate.full:
        return "its queue is full"
    if time.monotonic() - model.heard_at < _PROOF_S and not model.client.client.broken:
        return ""
    if model.probe is None or model.probe.done():  # however many ask, the engine is asked once
        model.probe = asyncio.ensure_future(_probe(model))
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await asyncio.shield(model.probe)
    except TimeoutError:
        return f"its engine did not answer within {_PATIENCE_S:g} s"


async def _probe(model: ServedModel) -> str:
    """Have the engine do the least it can do."""
    client = model.client
    try:
        async with asyncio.timeout(_PATIENCE_S):
            if client.resident.task == "embed":
                await client.client.embed([[1]])
            else:
                request = GenerateRequest(token_ids=(1,), sampling=Sampling(max_tokens=1, temperature=0.0))
                async for _ in client.client.generate(request):
                    pass
    except EnginebayError as error:
        return f"its engine failed ({error.kind})"
    except TimeoutError:
        return f"its engine did not answer within {_PATIENCE_S:g} s"
    model.heard_at = time.monotonic()
    return ""
