"""Would a request be answered now? A token made lately proves it; otherwise one is asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import Draining, EnginebayError
from enginebay.server.context import Context
from enginebay.server.offers import Offer, Session
from enginebay.server.retrying import trigger
from enginebay.server.served import ServedModel

_PROOF_S = 30.0  # so long a token is proof
_PATIENCE_S = 10.0
_IN_TROUBLE = "it cannot be loaded now, `bay ps` says why"


class _Problem(NamedTuple):
    why: str
    trigger: str | None  # what of `fallback_on` it is


_SILENT = _Problem(f"its engine did not answer within {_PATIENCE_S:g} s", None)


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
    troubles = await context.fleet.troubles()
    problems = await asyncio.gather(*(_of_chain(offer, troubles) for offer in offers))
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


async def _of_chain(offer: Offer, troubles: Mapping[str, EnginebayError]) -> str:
    """Why a model would not answer: as a request would, this goes on to the next engine where `fallback_on` says so."""
    first = ""
    for session in offer.sessions:
        problem = await _of_session(session, troubles.get(session.name))
        if problem is None:
            return ""
        first = first or problem.why
        if problem.trigger not in offer.offering.triggers:
            return first
    return first


async def _of_session(session: Session, trouble: EnginebayError | None) -> _Problem | None:
    if session.gate.full:
        return _Problem("its queue is full", "queue")
    served = session.live
    if served is None:
        return None if trouble is None else _Problem(f"{_IN_TROUBLE} ({trouble.kind})", trigger(trouble))
    if time.monotonic() - served.heard_at < _PROOF_S:
        return None
    if served.probe is None or served.probe.done():  # however many ask, the engine is asked once
        served.probe = asyncio.ensure_future(_probe(served))
    try:
        async with asyncio.timeout(_PATIENCE_S):
            found: _Problem | None = await asyncio.shield(served.probe)
            return found
    except TimeoutError:
        return _SILENT


async def _probe(model: ServedModel) -> _Problem | None:
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
        return None
    except EnginebayError as error:
        return _Problem(f"its engine failed ({error.kind})", trigger(error))
    except TimeoutError:
        return _SILENT
    model.heard_at = time.monotonic()
    return None
