"""Waits for a model to load, and reports progress to streaming clients."""

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
    """Return the seconds of the header `Prefer: wait=SECONDS`, at most `max_wait_s`, which is also the default."""
    match = _PREFER_WAIT.search(preference)
    return min(max_wait_s, float(match[1])) if match else max_wait_s


async def wait_for_session(
    request_context: RequestContext,
    connector: VariantConnector,
    fleet: FleetGateway,
    max_wait_s: float,
    stream: bool,
    limits: ServerLimits,
    metrics: ServerMetrics,
    begun: bool = False,
) -> ModelSession:
    """Return the variant's session once it is loaded. Raise `Overloaded` when the client's wait runs out.

    `begun`: the response has begun. Then limits on what may wait for a first load do not apply.
    """
    if request_context.exchange.closed:
        raise Cancelled("the client closed the connection")
    preference = "" if begun else request_context.exchange.headers.get("prefer", "")
    wait_s = parse_wait_preference(preference, max_wait_s)
    if request_context.wait_deadline is None:
        request_context.wait_deadline = time.monotonic() + wait_s
    if wait_s == 0:
        # An Overloaded first error means that another engine of the chain is already loading.
        preload = not isinstance(request_context.first_error, Overloaded)
        estimate = await fleet.estimate_wait(connector.name, preload=preload)
        if estimate.state != "awake":  # an awake one only lacks a connection from this process
            raise Overloaded(str(estimate), "wait for it, or try again later", retry_after_s=estimate.seconds)
    acquiring = asyncio.ensure_future(
        _acquire_session(connector, fleet, request_context.wait_deadline, limits, metrics, queued=not begun)
    )
    request_context.exchange.on_close = acquiring.cancel
    waiting_gauge = metrics.requests_waiting.child(*request_context.labels)
    waiting_gauge.inc()
    try:
        while not acquiring.done():
            await asyncio.wait({acquiring}, timeout=_PROGRESS_INTERVAL_S)
            if stream and not acquiring.done():
                request_context.write_comment(str(await fleet.estimate_wait(connector.name)))
        if acquiring.cancelled():
            raise Cancelled("the client closed the connection")
        return acquiring.result()
    finally:
        waiting_gauge.dec()
        request_context.exchange.on_close = None
        acquiring.cancel()


async def _acquire_session(
    connector: VariantConnector,
    fleet: FleetGateway,
    deadline: float,
    limits: ServerLimits,
    metrics: ServerMetrics,
    queued: bool,
) -> ModelSession:
    failed_address = connector.failed_address
    while True:
        handle = await fleet.acquire(connector.name, max(0.0, deadline - time.monotonic()), failed_address, queued)
        try:
            return await connector.connect(handle, limits, metrics)
        except WorkerDied:  # it died after the fleet returned it
            failed_address = handle.address
