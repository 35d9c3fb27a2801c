"""Looks at workers while they run: what they hold, whether they still step, whether they can be reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from enginebay.errors import EnginebayError
from enginebay.fleet.place import Place
from enginebay.fleet.residency import Depth
from enginebay.fleet.supervision import HANG, hung

_PATIENCE_S = 5.0  # for a worker's word on its state
_OUT_OF_REACH = "its sockets could not be reached"


class Watch:
    def __init__(self, hang_s: float, found: Callable[[Place, str], Awaitable[None]]) -> None:
        self.hang_s = hang_s
        self._found = found  # told of a worker that hangs or cannot be reached, and why it is to be ended
        self._looking: set[str] = set()

    async def look(self, place: Place, first_token: Callable[[Place, float], None]) -> None:
        """Ask the worker how it is. Several looks at a silent one would only pile up."""
        worker = place.worker
        if worker is None or place.name in self._looking:
            return
        self._looking.add(place.name)
        quiet_s = 0.0
        try:
            async with asyncio.timeout(_PATIENCE_S):
                state = await worker.client.state()
            if place.worker is not worker:
                return
            now = time.monotonic()
            quiet_s = state.quiet_s
            place.answered_at = now
            place.running, place.requests = state.running, state.requests
            place.memory_bytes = state.memory_bytes
            if place.ready and not state.open:  # a closing that was called off has come late
                await worker.client.open()
            if place.depth is Depth.AWAKE:
                place.idle_since = max(place.awake_since, now - state.idle_s)
                if state.HasField("first_token_s"):
                    first_token(place, state.first_token_s)
        except (EnginebayError, TimeoutError):
            pass  # one that has died is known by its process; one that is silent, by the time
        finally:
            self._looking.discard(place.name)
        heard = place.answered_at or None
        still = place.worker is worker and not place.moving
        if still and not place.remote and hung(time.monotonic(), place.running, quiet_s, self.hang_s, heard):
            await self._found(place, HANG)

    async def reach(self, place: Place) -> None:
        """Somebody could not reach it. If we cannot either, it is of no use to anybody."""
        worker = place.worker
        if worker is None or place.moving:
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await worker.client.state()
                await worker.client.knock()
        except (EnginebayError, TimeoutError, OSError):
            if place.worker is worker and worker.process.returncode is None:
                await self._found(place, _OUT_OF_REACH)
