"""Readiness: every model that must answer has produced a token lately, or produces one when probed."""

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

_RECENT_TOKEN_S = 30.0  # no probe within this time of a token
_PROBE_TIMEOUT_S = 10.0
_LOAD_FAILED = "it fails to load, see `bay ps`"


class _ReadinessProblem(NamedTuple):
    reason: str
    trigger: str | None  # of `fallback_on`


_PROBE_TIMED_OUT = _ReadinessProblem(f"its engine did not respond within {_PROBE_TIMEOUT_S:g} s", None)


class Readiness(NamedTuple):
    models: list[str]  # that would serve a request
    reasons: list[str]  # why the server is not ready; empty if it is
    failing: list[str]  # failing models that load on use: they do not make the server unready


class ModelHealth(NamedTuple):
    """The health of one model."""

    name: str
    loads_at_start: bool  # with `load: start`
    problem: str  # why it would not serve a request; empty if it would

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


async def check_readiness(context: ServerContext) -> Readiness:
    """Check every model, and probe those without a recent token."""
    if context.draining:
        return Readiness([], ["the server is stopping"], [])
    entries = list(context.catalog.entries.values())
    failures = await context.fleet.list_failures()
    problems = await asyncio.gather(*(_check_chain(entry, failures) for entry in entries))
    return summarize_readiness(
        [
            ModelHealth(entry.name, entry.route.load_at_start, problem)
            for entry, problem in zip(entries, problems, strict=True)
        ]
    )


def summarize_readiness(models: Sequence[ModelHealth]) -> Readiness:
    """Require every model that loads at start. One that loads on use must not take the others out of service. Pure."""
    if not models:
        return Readiness([], ["no models are configured"], [])
    healthy = [model.name for model in models if not model.problem]
    required = [model for model in models if model.loads_at_start] or ([] if healthy else models)
    return Readiness(
        healthy,
        [str(model) for model in required if model.problem],
        [str(model) for model in models if model.problem and model not in required],
    )


async def _check_chain(entry: CatalogEntry, failures: Mapping[str, EnginebayError]) -> str:
    """Return why a model would not serve a request, or "". Follows `fallback_on` as a request would."""
    first_reason = ""
    for connector in entry.connectors:
        problem = await _check_connector(connector, failures.get(connector.name))
        if problem is None:
            return ""
        first_reason = first_reason or problem.reason
        if problem.trigger not in entry.route.fallback_on:
            return first_reason
    return first_reason


async def _check_connector(connector: VariantConnector, failure: EnginebayError | None) -> _ReadinessProblem | None:
    if connector.queue.is_full:
        return _ReadinessProblem("its queue is full", "queue")
    sessions = connector.list_live_sessions()
    if not sessions:
        if failure is None:
            return None
        return _ReadinessProblem(f"{_LOAD_FAILED} ({failure.kind})", classify_fallback_trigger(failure))
    if any(time.monotonic() - session.last_token_at < _RECENT_TOKEN_S for session in sessions):
        return None
    problems = await asyncio.gather(*map(_check_engine, sessions))
    return None if None in problems else problems[0]


async def _check_engine(session: ModelSession) -> _ReadinessProblem | None:
    if session.probe is None or session.probe.done():  # concurrent checks share one probe
        session.probe = asyncio.ensure_future(_probe_engine(session))
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            problem: _ReadinessProblem | None = await asyncio.shield(session.probe)
            return problem
    except TimeoutError:
        return _PROBE_TIMED_OUT


async def _probe_engine(session: ModelSession) -> _ReadinessProblem | None:
    """Run the smallest possible request."""
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
        session.draining = True  # the next check looks for its successor
        return None
    except EnginebayError as error:
        return _ReadinessProblem(f"its engine failed ({error.kind})", classify_fallback_trigger(error))
    except TimeoutError:
        return _PROBE_TIMED_OUT
    session.last_token_at = time.monotonic()
    return None
