"""Would a request be answered now? A token made lately proves it; otherwise one is asked for."""

from __future__ import annotations

import asyncio
import time

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import Draining, EnginebayError
from enginebay.server.context import Context
from enginebay.server.offers import Offer, Session
from enginebay.server.served import ServedModel

_PROOF_S = 30.0  # so long a token is proof
_PATIENCE_S = 10.0
_FAILING = ("failing", "unavailable")  # of `fleet.outlook`


async def not_ready(context: Context) -> list[str]:
    """Why a request might not be answered; empty when it would be."""
    if context.draining:
        return ["the server is stopping"]
    offers = list(context.catalogue.offers.values())
    if not offers:
        return ["there is no model"]
    # What is loaded on demand speaks for itself when it is asked; one that fails must not take the others out of service.
    offers = [offer for offer in offers if offer.offering.at_start or offer.first.live is not None] or offers
    found = await asyncio.gather(*(_problem(context, offer) for offer in offers))
    return [f"{offer.name}: {problem}" for offer, problem in zip(offers, found, strict=True) if problem]


async def _problem(context: Context, offer: Offer) -> str:
    """Of a model: one engine of its chain that answers will do."""
    first = ""
    for session in offer.sessions:
        problem = await _of_session(context, session)
        if not problem:
            return ""
        first = first or problem
    return first


async def _of_session(context: Context, session: Session) -> str:
    if session.gate.full:
        return "its queue is full"
    served = session.live
    if served is None:
        return await _outlook(context, session)
    if time.monotonic() - served.heard_at < _PROOF_S:
        return ""
    if served.probe is None or served.probe.done():  # however many ask, the engine is asked once
        served.probe = asyncio.ensure_future(_probe(served))
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await asyncio.shield(served.probe)
    except TimeoutError:
        return f"its engine did not answer within {_PATIENCE_S:g} s"


async def _outlook(context: Context, session: Session) -> str:
    """Of one that is not loaded: a request would have it loaded, unless that has failed."""
    ahead = await context.fleet.look_ahead(session.name)
    if ahead.state in _FAILING:
        return f"it is {ahead.state}"
    return f"{ahead}" if ahead.seconds > context.max_wait_s else ""


async def _probe(model: ServedModel) -> str:
    """Have the engine do the least it can do."""
    client = model.client
    try:
        async with asyncio.timeout(_PATIENCE_S):
            if client.resident.task == "embed":
                await client.client.embed([[1]])
            elif not client.spec.renders:
                request = GenerateRequest(token_ids=(1,), sampling=Sampling(max_tokens=1, temperature=0.0))
                async for _ in client.client.generate(request):
                    pass
    except Draining:
        model.refused = True  # the next to ask looks for its successor
        return ""
    except EnginebayError as error:
        return f"its engine failed ({error.kind})"
    except TimeoutError:
        return f"its engine did not answer within {_PATIENCE_S:g} s"
    model.heard_at = time.monotonic()
    return ""
