"""Decides which responses continue on another worker when their own dies, and where."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from enginebay.contract import GenerateRequest
from enginebay.errors import CrashLoop, Draining, EnginebayError, WorkerDied
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.sessions.model_session import ModelSession

MAX_RESUMES = 2
_MAX_DEATHS = 2  # a request that runs when a second worker dies may be the cause
_DISCONNECT_S = 5.0  # an engine may report its end before its worker exits
_POLL_S = 0.02


def is_resumable(request_context: RequestContext, session: ModelSession, requests: Sequence[GenerateRequest]) -> bool:
    """Return whether another worker can continue the response: one sequence of known token ids."""
    request, sampling, entry = requests[0], requests[0].sampling, request_context.catalog_entry
    single = len(requests) == 1 and sampling.n == 1 and (sampling.best_of or 1) == 1 and (sampling.num_beams or 1) == 1
    allowed = entry is not None and entry.route.resume and session.client.spec.continues
    return single and allowed and request.token_ids is not None


def should_resume(request_context: RequestContext, error: EnginebayError) -> bool:
    """Return whether to continue a paused response after this error, and count the death of its worker."""
    if request_context.exchange.closed or isinstance(error, CrashLoop):
        return False
    if isinstance(error, Draining):
        return True  # no worker ran it
    if not isinstance(error, WorkerDied):
        return False
    if request_context.worker_deaths + 1 >= _MAX_DEATHS or request_context.resumes >= MAX_RESUMES:
        return False
    request_context.worker_deaths += 1
    return True


def count_resume(request_context: RequestContext) -> None:
    request_context.resumes += 1
    assert request_context.server is not None
    request_context.server.metrics.requests_resumed.child(*request_context.labels).inc()


def check_same_model(before: ModelSession, session: ModelSession) -> None:
    """Raise if the token ids of one session mean nothing in the other: the model was reconfigured."""
    spec, source = before.client.spec, before.client.handle.source
    if (session.client.spec.kind, session.client.handle.source) != (spec.kind, source):
        raise WorkerDied("the worker died, and the model was reconfigured meanwhile", "send the request again")


async def wait_disconnected(session: ModelSession) -> None:
    """Wait until the worker of a failed request is known to be dead, so that none is sent to it again."""
    client, loop = session.client.client, asyncio.get_running_loop()
    deadline = loop.time() + _DISCONNECT_S
    while not client.broken and loop.time() < deadline:
        await asyncio.sleep(_POLL_S)
