"""Looks at workers while they run: what they hold, whether they still step, whether they can be reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from enginebay.errors import EnginebayError
from enginebay.fleet.lifecycle.crash_policy import HANG, is_hung
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.scheduling.planner import ReplicaState

_REPLY_TIMEOUT_S = 5.0  # for a worker's word on its state
_UNREACHABLE = "its sockets could not be reached"


class HealthMonitor:
    def __init__(self, hang_s: float, on_unhealthy: Callable[[Replica, str], Awaitable[None]]) -> None:
        self.hang_s = hang_s
        self._on_unhealthy = on_unhealthy  # told of a worker that hangs or cannot be reached, and why it is to be ended
        self._polling: set[str] = set()

    async def poll(self, replica: Replica, on_first_token: Callable[[Replica, float], None]) -> None:
        """Ask the worker how it is. Several looks at a silent one would only pile up."""
        worker = replica.worker
        if worker is None or replica.name in self._polling:
            return
        self._polling.add(replica.name)
        quiet_s = 0.0
        try:
            async with asyncio.timeout(_REPLY_TIMEOUT_S):
                state = await worker.client.state()
            if replica.worker is not worker:
                return
            now = time.monotonic()
            quiet_s = state.quiet_s
            replica.last_heard_at = now
            replica.running, replica.accepted_requests = state.running, state.requests
            replica.memory_bytes = state.memory_bytes
            if replica.ready and not state.open:  # a closing that was called off has come late
                await worker.client.open()
            if replica.state is ReplicaState.AWAKE:
                replica.idle_since = max(replica.awake_since, now - state.idle_s)
                if state.HasField("first_token_s"):
                    on_first_token(replica, state.first_token_s)
        except (EnginebayError, TimeoutError):
            pass  # one that has died is known by its process; one that is silent, by the time
        finally:
            self._polling.discard(replica.name)
        heard = replica.last_heard_at or None
        still = replica.worker is worker and not replica.in_transition
        if still and not replica.remote and is_hung(time.monotonic(), replica.running, quiet_s, self.hang_s, heard):
            await self._on_unhealthy(replica, HANG)

    async def check_reachable(self, replica: Replica) -> None:
        """Somebody could not reach it. If we cannot either, it is of no use to anybody."""
        worker = replica.worker
        if worker is None or replica.in_transition:
            return
        try:
            async with asyncio.timeout(_REPLY_TIMEOUT_S):
                await worker.client.state()
                await worker.client.check_listening()
        except (EnginebayError, TimeoutError, OSError):
            if replica.worker is worker and worker.process.returncode is None:
                await self._on_unhealthy(replica, _UNREACHABLE)
