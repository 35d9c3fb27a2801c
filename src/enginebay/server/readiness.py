"""Would a request be answered now? A token made lately proves it; otherwise one is asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import Draining, EnginebayError
from enginebay.server.context import Context
from enginebay.server.offers import Offer, Session
from enginebay.server.served import ServedModel

_PROOF_S = 30.0  # so long a token is proof
_PATIENCE_S = 10.0
_FAILING = ("failing", "unavailable")  # of `fleet.outlook`


class Readiness(NamedTuple):
    models: list[str]  # that would answer
    reasons: list[str]  # why the server is not ready; empty when it is
    failing: list[str]  # models that would not answer either, but are loaded on use only


class Looked(NamedTuple):
    """What was found of one model."""

    name: str
    at_start: bool  # it is to be loaded whenever the server runs
    problem: str  # why it would not answer; empty: it would

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


async def look(context: Context) -> Readiness:
    """At all models, and ask those that have said nothing for a while."""
    if context.draining:
        return Readiness([], ["the server is stopping"], [])
    offers = list(context.catalogue.offers.values())
    problems = await asyncio.gather(*(_problem(context, offer) for offer in offers))
    return judged(
        [Looked(offer.name, offer.offering.at_start, why) for offer, why in zip(offers, problems, strict=True)]
    )


def judged(models: Sequence[Looked]) -> Readiness:
    """All that are loaded at the start have to answer. One that is loaded on use must not take others out of service. Pure."""
    if not models:
        return Readiness([], ["there is no model"], [])
    well = [one.name for one in models if not one.problem]
    needed = [one for one in models if one.at_start] or ([] if well else models)
    return Readiness(
        well,
        [str(one) for one in needed if one.problem],
        [str(one) for one in models if one.problem and one not in needed],
    )


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
