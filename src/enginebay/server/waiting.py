"""Waiting for a model that is not loaded: as long as the client does, and telling it how long that may be."""

from __future__ import annotations

import asyncio
import re
import time

from enginebay.config.server import Limits
from enginebay.errors import Cancelled, Overloaded, WorkerDied
from enginebay.server.call import Call
from enginebay.server.metrics import Metrics
from enginebay.server.offers import FleetPort, Session
from enginebay.server.served import ServedModel

_TELL_S = 2.0
_PREFERENCE = re.compile(r"(?:^|[,;\s])wait=(\d{1,9})(?:$|[,;\s])")


def patience(preference: str, most_s: float) -> float:
    """How long a client would wait, by its header `Prefer: wait=SECONDS`; without, as long as it may."""
    found = _PREFERENCE.search(preference)
    return min(most_s, float(found[1])) if found else most_s


async def wait_for(
    call: Call, session: Session, fleet: FleetPort, most_s: float, stream: bool, limits: Limits, metrics: Metrics
) -> ServedModel:
    """The variant's session, once it is loaded. Raises `Overloaded` when that takes longer than the client waits."""
    if call.exchange.closed:
        raise Cancelled("the client closed the connection")
    wait_s = patience(call.exchange.headers.get("prefer", ""), most_s)
    if call.give_up_at is None:
        call.give_up_at = time.monotonic() + wait_s
    if wait_s == 0:
        coming = isinstance(call.first_error, Overloaded)  # another engine of the chain, which was wished for
        ahead = await fleet.look_ahead(session.name, wish=not coming)
        if ahead.state != "awake":  # else it is only this process that has not met its worker yet
            raise Overloaded(str(ahead), "wait for it, or try again later", retry_after_s=ahead.seconds)
    reaching = asyncio.ensure_future(_reach(session, fleet, call.give_up_at, limits, metrics))
    call.exchange.on_close = reaching.cancel
    waiting = metrics.requests_waiting.child(*call.labels)
    waiting.inc()
    try:
        while not reaching.done():
            await asyncio.wait({reaching}, timeout=_TELL_S)
            if stream and not reaching.done():
                call.comment(str(await fleet.look_ahead(session.name)))
        if reaching.cancelled():
            raise Cancelled("the client closed the connection")
        return reaching.result()
    finally:
        waiting.dec()
        call.exchange.on_close = None
        reaching.cancel()


async def _reach(session: Session, fleet: FleetPort, until: float, limits: Limits, metrics: Metrics) -> ServedModel:
    broken = session.broken
    while True:
        resident = await fleet.want(session.name, max(0.0, until - time.monotonic()), broken)
        try:
            return await session.meet(resident, limits, metrics)
        except WorkerDied:  # between being named and being asked
            broken = resident.address
