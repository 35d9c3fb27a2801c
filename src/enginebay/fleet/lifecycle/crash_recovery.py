"""What the fleet does after a crash or a failed load: fails those who wait, and loads again after a backoff."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from enginebay.errors import EnginebayError
from enginebay.fleet.lifecycle import crash_records
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.scheduling.planner import ReplicaState

if TYPE_CHECKING:
    from enginebay.fleet.fleet import Fleet


class CrashRecovery:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def handle_crash(self, replica: Replica, worker: ModelWorker, killed_because: str | None) -> None:
        """Restart a worker that exited, or kill it first if it hangs or cannot be reached."""
        fleet = self._fleet
        if replica.worker is not worker or fleet.closing:
            return
        replica.recovering = replica.state is ReplicaState.AWAKE
        fleet.request_plan()  # requests for it go elsewhere from now on
        await crash_records.record_crash(replica, worker, killed_because, fleet.config, fleet.emit_event)
        await fleet.gpu_watch.check(now=True)
        if replica.load_error is None:
            if replica.recovering:
                fleet.preload(replica.name)
        else:
            self._fail_waiters(replica, replica.load_error)
        self._schedule_retry(replica)

    def handle_load_failure(self, replica: Replica, error: EnginebayError) -> None:
        """Fail the waiting requests: the next attempt may never succeed."""
        worker = crash_records.record_load_failure(replica, error, self._fleet.config, self._fleet.emit_event)
        if worker is not None:
            self._fleet.spawn(worker.kill())
        self._fail_waiters(replica, replica.load_error or error)
        self._schedule_retry(replica)

    def _fail_waiters(self, replica: Replica, error: EnginebayError) -> None:
        """Fail the clients that wait for the first replica, unless another one serves them."""
        copies = self._fleet.list_copies(replica)
        if replica.number > 1 or any(copy.state is ReplicaState.AWAKE for copy in copies):
            self._fleet.wait_queue.end_preload(replica.name)
        else:
            self._fleet.wait_queue.fail(replica.name, error)

    def _schedule_retry(self, replica: Replica) -> None:
        """Run the planner now and when the backoff ends."""
        self._fleet.request_plan()
        delay_s = max(0.0, replica.retry_at - time.monotonic())
        asyncio.get_running_loop().call_later(delay_s, self._retry_load, replica)

    def _retry_load(self, replica: Replica) -> None:
        """Preload a replica that crashed while awake, or that is pinned."""
        fleet = self._fleet
        due = time.monotonic() >= replica.retry_at and replica.worker is None and not replica.in_transition
        if due and not fleet.closing and fleet.replicas.get(replica.name) is replica:
            replica.load_error = None
            if replica.recovering or replica.is_pinned:
                fleet.preload(replica.name)
        fleet.request_plan()
