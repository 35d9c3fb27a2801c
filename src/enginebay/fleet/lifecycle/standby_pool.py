"""Standby workers: processes that have imported their engine's library and wait for a model.

The engines in `fleet.standby` always have one. Others get one when a load is imminent, so that its imports run while
another model frees memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from enginebay.contract import LaunchMode, Load
from enginebay.errors import EnginebayError
from enginebay.fleet.lifecycle.background_tasks import EmitEvent
from enginebay.fleet.lifecycle.launch_plan import LaunchPlan
from enginebay.util.paths import logs_dir
from enginebay.worker.client_side.worker_process import WorkerLaunch, WorkerProcess

_RETRY_S = 30.0  # after a failed start
_START_TIMEOUT_S = 120.0
_REFILL_DELAY_S = 2.0  # after a standby was taken: the waiting requests run first


class StandbyPool:
    """Starts standby workers in the background, so that a load never waits for them."""

    def __init__(self, kinds: Iterable[str], emit_event: EmitEvent) -> None:
        self.kinds = frozenset(kinds)
        self._emit_event = emit_event
        self._spare: dict[str, WorkerProcess] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._retry_at: dict[str, float] = {}
        self._pythons: dict[str, Path] = {}  # of ready and starting ones
        self._closed = False

    def has_ready(self, launch: WorkerLaunch) -> bool:
        """Return whether a listed engine's standby can take this launch."""
        spare = self._spare.get(launch.load.kind)
        return launch.load.kind in self.kinds and spare is not None and _is_compatible(spare, launch)

    async def take(self, launch: WorkerLaunch) -> WorkerProcess | None:
        """Return a standby for this launch, or None. The caller owns it from now on."""
        starting = self._starting.get(launch.load.kind)
        compatible = self._pythons.get(launch.load.kind) == launch.python and _can_use_standby(launch)
        if starting is not None and compatible:  # ready sooner than a new process
            await asyncio.wait({starting}, timeout=_START_TIMEOUT_S)
        spare = self._spare.get(launch.load.kind)
        if spare is None or not _is_compatible(spare, launch):
            return None
        del self._spare[launch.load.kind]
        self._retry_at[launch.load.kind] = time.monotonic() + _REFILL_DELAY_S
        return spare

    def prestart(self, plan: LaunchPlan) -> None:
        """Start a standby for an imminent load."""
        kind = plan.spec.kind
        exists = kind in self._spare or kind in self._starting
        if not exists and not self._closed and _can_use_standby(plan.launch):
            self._starting[kind] = asyncio.create_task(self._start(plan))

    def list_pids(self) -> dict[str, int]:
        """Return the process ids of ready standbys by engine."""
        return {kind: spare.pid for kind, spare in self._spare.items() if spare.returncode is None}

    def replenish(self, plans: Sequence[LaunchPlan], load_pending: bool) -> None:
        """Start missing standbys and discard obsolete ones. Call it while nothing loads: imports take a core.

        `load_pending`: keep prestarted ones, because a load still waits.
        """
        for kind in [kind for kind in self._spare if kind not in self.kinds and not load_pending]:
            self._starting[kind] = asyncio.create_task(self._discard(self._spare.pop(kind)))
        for plan in plans:
            kind = plan.spec.kind
            spare = self._spare.get(kind)
            outdated = spare is not None and all(other.launch.python != spare.launch.python for other in plans)
            if spare is not None and (spare.returncode is not None or outdated):
                self._starting[kind] = asyncio.create_task(self._discard(self._spare.pop(kind)))
            missing = kind in self.kinds and kind not in self._spare and not self._closed
            if missing and kind not in self._starting and time.monotonic() >= self._retry_at.get(kind, 0.0):
                self._starting[kind] = asyncio.create_task(self._start(plan))

    async def _start(self, plan: LaunchPlan) -> None:
        kind = plan.spec.kind
        self._pythons[kind] = plan.launch.python
        load = Load(kind=kind, engine=plan.spec.engine, model="(standby)", path="")
        log = logs_dir() / f"{kind}-standby.log"
        launch = replace(plan.launch, load=load, log=log, mode=LaunchMode.DIRECT, variables={}, devices={})
        try:
            self._spare[kind] = await WorkerProcess.start_standby(launch)
            if kind in self.kinds:
                self._emit_event("standby ready", engine=kind, import_s=round(self._spare[kind].import_s, 3))
        except EnginebayError as error:
            self._retry_at[kind] = time.monotonic() + _RETRY_S
            self._emit_event("standby failed", level="warning", engine=kind, error=error.message)
        finally:
            self._starting.pop(kind, None)

    async def _discard(self, spare: WorkerProcess) -> None:
        await spare.close(grace_s=0)
        self._starting.pop(spare.launch.load.kind, None)

    async def close(self) -> None:
        self._closed = True
        for task in list(self._starting.values()):
            task.cancel()
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        await asyncio.gather(*(spare.close() for spare in self._spare.values()))
        self._spare.clear()


def _is_compatible(spare: WorkerProcess, launch: WorkerLaunch) -> bool:
    if launch.devices and spare.initialized_cuda:
        return False  # it would stay on the GPUs it has seen
    return spare.launch.python == launch.python and _can_use_standby(launch) and spare.returncode is None


def _can_use_standby(launch: WorkerLaunch) -> bool:
    """Return whether a standby can take the launch: one has no launcher and no variables of a model."""
    return launch.mode is LaunchMode.DIRECT and not launch.variables
