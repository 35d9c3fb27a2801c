"""Would a request be answered now? A token made lately proves it; otherwise one is asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import Draining, EnginebayError
from enginebay.server.requests.retry_policy import classify_fallback_trigger
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_catalog import CatalogEntry, VariantConnector
from enginebay.server.sessions.model_session import ModelSession

_RECENT_TOKEN_S = 30.0  # so long a token is proof
_PROBE_TIMEOUT_S = 10.0
_LOAD_FAILED = "it cannot be loaded now, `bay ps` says why"


class _ReadinessProblem(NamedTuple):
    why: str
    trigger: str | None  # what of `fallback_on` it is


_NO_ANSWER = _ReadinessProblem(f"its engine did not answer within {_PROBE_TIMEOUT_S:g} s", None)


class Readiness(NamedTuple):
    models: list[str]  # that would answer
    reasons: list[str]  # why the server is not ready; empty when it is
    failing: list[str]  # models that would not answer either, but are loaded on use only


class ModelHealth(NamedTuple):
    """What was found of one model."""

    name: str
    loads_at_start: bool  # it is to be loaded whenever the server runs
    problem: str  # why it would not answer; empty: it would

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


async def check_readiness(context: ServerContext) -> Readiness:
    """At all models, and ask those that have said nothing for a while."""
    if context.draining:
        return Readiness([], ["the server is stopping"], [])
    offers = list(context.catalog.entries.values())
    troubles = await context.fleet.list_failures()
    problems = await asyncio.gather(*(_check_chain(offer, troubles) for offer in offers))
    return summarize_readiness(
        [
            ModelHealth(offer.name, offer.offering.load_at_start, why)
            for offer, why in zip(offers, problems, strict=True)
        ]
    )


def summarize_readiness(models: Sequence[ModelHealth]) -> Readiness:
    """All that are loaded at the start have to answer. One that is loaded on use must not take others out of service. Pure."""
    if not models:
        return Readiness([], ["there is no model"], [])
    well = [one.name for one in models if not one.problem]
    needed = [one for one in models if one.loads_at_start] or ([] if well else models)
    return Readiness(
        well,
        [str(one) for one in needed if one.problem],
        [str(one) for one in models if one.problem and one not in needed],
    )


async def _check_chain(offer: CatalogEntry, troubles: Mapping[str, EnginebayError]) -> str:
    """Why a model would not answer: as a request would, this goes on to the next engine where `fallback_on` says so."""
    first = ""
    for session in offer.connectors:
        problem = await _check_connector(session, troubles.get(session.name))
        if problem is None:
            return ""
        first = first or problem.why
        if problem.trigger not in offer.offering.fallback_on:
            return first
    return first


async def _check_connector(connector: VariantConnector, trouble: EnginebayError | None) -> _ReadinessProblem | None:
    if connector.queue.is_full:
        return _ReadinessProblem("its queue is full", "queue")
    served = connector.live_session
    if served is None:
        return (
            None
            if trouble is None
            else _ReadinessProblem(f"{_LOAD_FAILED} ({trouble.kind})", classify_fallback_trigger(trouble))
        )
    if time.monotonic() - served.last_token_at < _RECENT_TOKEN_S:
        return None
    if served.probe is None or served.probe.done():  # however many ask, the engine is asked once
        served.probe = asyncio.ensure_future(_probe_engine(served))
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            found: _ReadinessProblem | None = await asyncio.shield(served.probe)
            return found
    except TimeoutError:
        return _NO_ANSWER


async def _probe_engine(session: ModelSession) -> _ReadinessProblem | None:
    """Have the engine do the least it can do."""
    client = session.client
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            if client.handle.task == "embed":
                await client.client.embed([[1]])
            elif not client.spec.renders:
                request = GenerateRequest(token_ids=(1,), sampling=Sampling(max_tokens=1, temperature=0.0))
                async for _ in client.client.generate(request):
                    pass
    except Draining:
        session.draining = True  # the next to ask looks for its successor
        return None
    except EnginebayError as error:
        return _ReadinessProblem(f"its engine failed ({error.kind})", classify_fallback_trigger(error))
    except TimeoutError:
        return _NO_ANSWER
    session.last_token_at = time.monotonic()
    return None
