"""Waiting for a model that is not loaded: as long as the client does, and telling it how long that may be."""

from __future__ import annotations

import asyncio
import re
import time

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import Cancelled, Overloaded, WorkerDied
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.sessions.model_catalog import FleetGateway, VariantConnector
from enginebay.server.sessions.model_session import ModelSession
from enginebay.server.telemetry.server_metrics import ServerMetrics

_PROGRESS_INTERVAL_S = 2.0
_PREFER_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,9})(?:$|[,;\s])")


def parse_wait_preference(preference: str, max_wait_s: float) -> float:
    """How long a client would wait, by its header `Prefer: wait=SECONDS`; without, as long as it may."""
    found = _PREFER_WAIT.search(preference)
    return min(max_wait_s, float(found[1])) if found else max_wait_s


async def wait_for_session(
    request_context: RequestContext,
    connector: VariantConnector,
    fleet: FleetGateway,
    max_wait_s: float,
    stream: bool,
    limits: ServerLimits,
    metrics: ServerMetrics,
) -> ModelSession:
    """The variant's session, once it is loaded. Raises `Overloaded` when that takes longer than the client waits."""
    if request_context.exchange.closed:
        raise Cancelled("the client closed the connection")
    wait_s = parse_wait_preference(request_context.exchange.headers.get("prefer", ""), max_wait_s)
    if request_context.wait_deadline is None:
        request_context.wait_deadline = time.monotonic() + wait_s
    if wait_s == 0:
        coming = isinstance(
            request_context.first_error, Overloaded
        )  # another engine of the chain, which was wished for
        ahead = await fleet.estimate_wait(connector.name, preload=not coming)
        if ahead.state != "awake":  # else it is only this process that has not met its worker yet
            raise Overloaded(str(ahead), "wait for it, or try again later", retry_after_s=ahead.seconds)
    reaching = asyncio.ensure_future(_acquire_session(connector, fleet, request_context.wait_deadline, limits, metrics))
    request_context.exchange.on_close = reaching.cancel
    waiting = metrics.requests_waiting.child(*request_context.labels)
    waiting.inc()
    try:
        while not reaching.done():
            await asyncio.wait({reaching}, timeout=_PROGRESS_INTERVAL_S)
            if stream and not reaching.done():
                request_context.write_comment(str(await fleet.estimate_wait(connector.name)))
        if reaching.cancelled():
            raise Cancelled("the client closed the connection")
        return reaching.result()
    finally:
        waiting.dec()
        request_context.exchange.on_close = None
        reaching.cancel()


async def _acquire_session(
    connector: VariantConnector, fleet: FleetGateway, deadline: float, limits: ServerLimits, metrics: ServerMetrics
) -> ModelSession:
    broken = connector.failed_address
    while True:
        resident = await fleet.acquire(connector.name, max(0.0, deadline - time.monotonic()), broken)
        try:
            return await connector.connect(resident, limits, metrics)
        except WorkerDied:  # between being named and being asked
            broken = resident.address
