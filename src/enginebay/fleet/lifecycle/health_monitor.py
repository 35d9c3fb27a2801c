"""Health checks of running workers: polls their state and detects hung, unreachable and exited ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from enginebay.errors import EnginebayError
from enginebay.fleet.lifecycle.crash_policy import HANG, is_hung
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.scheduling.planner import ReplicaState

_REPLY_TIMEOUT_S = 5.0
_TRANSITION_POLL_S = 0.05
_UNREACHABLE = "its sockets could not be reached"

OnUnhealthy = Callable[[Replica, ModelWorker, str | None], Awaitable[None]]


class HealthMonitor:
    def __init__(self, hang_s: float, on_unhealthy: OnUnhealthy) -> None:
        self.hang_s = hang_s
        self._on_unhealthy = on_unhealthy  # gets the reason to kill the worker; None: it has exited
        self._polling: set[str] = set()

    async def poll(self, replica: Replica, on_first_token: Callable[[Replica, float], None]) -> None:
        """Update the replica from its worker's state. At most one poll per replica runs at a time."""
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
            if replica.ready and not state.open:  # a cancelled drain took effect late
                await worker.client.open()
            if replica.state is ReplicaState.AWAKE:
                replica.idle_since = max(replica.awake_since, now - state.idle_s)
                if state.HasField("first_token_s"):
                    on_first_token(replica, state.first_token_s)
        except (EnginebayError, TimeoutError):
            pass  # `watch_exit` sees an exit, and `is_hung` the silence
        finally:
            self._polling.discard(replica.name)
        heard = replica.last_heard_at or None
        settled = replica.worker is worker and not replica.in_transition
        if settled and not replica.remote and is_hung(time.monotonic(), replica.running, quiet_s, self.hang_s, heard):
            await self._on_unhealthy(replica, worker, HANG)

    async def watch_exit(self, replica: Replica, worker: ModelWorker) -> None:
        """Wait for the worker's process to exit and report it, unless a transition handles it."""
        await worker.process.wait()
        while replica.worker is worker and replica.in_transition:
            await asyncio.sleep(_TRANSITION_POLL_S)
        if replica.worker is worker:
            await self._on_unhealthy(replica, worker, None)

    async def check_reachable(self, replica: Replica) -> None:
        """Check a worker that a client could not reach, and report it if we cannot reach it either."""
        worker = replica.worker
        if worker is None or replica.in_transition:
            return
        try:
            async with asyncio.timeout(_REPLY_TIMEOUT_S):
                await worker.client.state()
                await worker.client.check_listening()
        except (EnginebayError, TimeoutError, OSError):
            if replica.worker is worker and worker.process.returncode is None:
                await self._on_unhealthy(replica, worker, _UNREACHABLE)
