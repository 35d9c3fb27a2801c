"""Spare workers: the engine's library imported, waiting for a model.

Engines that are listed have one all the time. Others get one when a load is about to come, so that its imports run while
somebody makes room for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from enginebay.contract import LaunchMode, Load
from enginebay.errors import EnginebayError
from enginebay.fleet.lifecycle.launch_plan import LaunchPlan
from enginebay.util.paths import logs_dir
from enginebay.worker.client_side.worker_process import WorkerLaunch, WorkerProcess

_RETRY_S = 30.0  # after one that could not be started
_START_TIMEOUT_S = 120.0  # for one that is being started: then it hangs
_REFILL_DELAY_S = 2.0  # after one was taken: whoever waited for it is answered first

EmitEvent = Callable[..., None]


class StandbyPool:
    """Started in the background, so that they never keep a load waiting."""

    def __init__(self, kinds: Iterable[str], emit_event: EmitEvent) -> None:
        self.kinds = frozenset(kinds)
        self._emit_event = emit_event
        self._spare: dict[str, WorkerProcess] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self._pythons: dict[str, Path] = {}  # of those that are there or being started
        self._closed = False

    def has_ready(self, launch: WorkerLaunch) -> bool:
        """Whether there is one for this launch that has been waiting for it."""
        spare = self._spare.get(launch.load.kind)
        return launch.load.kind in self.kinds and spare is not None and _is_compatible(spare, launch)

    async def take(self, launch: WorkerLaunch) -> WorkerProcess | None:
        """The spare one for this launch, if there is one; the caller owns it from now on."""
        starting = self._starting.get(launch.load.kind)
        for_it = self._pythons.get(launch.load.kind) == launch.python and launch.mode is LaunchMode.DIRECT
        if starting is not None and for_it:  # half of its imports are done: it is sooner ready than a new one
            await asyncio.wait({starting}, timeout=_START_TIMEOUT_S)
        spare = self._spare.get(launch.load.kind)
        if spare is None or not _is_compatible(spare, launch):
            return None
        del self._spare[launch.load.kind]
        self._not_before[launch.load.kind] = time.monotonic() + _REFILL_DELAY_S
        return spare

    def prestart(self, plan: LaunchPlan) -> None:
        """Start one for a load that is about to come."""
        kind = plan.spec.kind
        there = kind in self._spare or kind in self._starting
        if not there and not self._closed and plan.launch.mode is LaunchMode.DIRECT:
            self._starting[kind] = asyncio.create_task(self._start(plan))

    def list_pids(self) -> dict[str, int]:
        """Process ids by engine, of those that are ready."""
        return {kind: spare.pid for kind, spare in self._spare.items() if spare.returncode is None}

    def replenish(self, plans: Sequence[LaunchPlan], load_pending: bool) -> None:
        """Start what is missing. To be called when nothing is being loaded: imports take a core.

        `expecting`: somebody still waits for a load, so what was prepared for it stays.
        """
        for kind in [kind for kind in self._spare if kind not in self.kinds and not load_pending]:
            self._starting[kind] = asyncio.create_task(self._discard(self._spare.pop(kind)))
        for plan in plans:
            kind = plan.spec.kind
            spare = self._spare.get(kind)
            outdated = spare is not None and all(one.launch.python != spare.launch.python for one in plans)
            if spare is not None and (spare.returncode is not None or outdated):
                self._starting[kind] = asyncio.create_task(self._discard(self._spare.pop(kind)))
            wanted = kind in self.kinds and kind not in self._spare and not self._closed
            if wanted and kind not in self._starting and time.monotonic() >= self._not_before.get(kind, 0.0):
                self._starting[kind] = asyncio.create_task(self._start(plan))

    async def _start(self, plan: LaunchPlan) -> None:
        kind = plan.spec.kind
        self._pythons[kind] = plan.launch.python
        load = Load(kind=kind, engine=plan.spec.engine, model="(standby)", path="")
        launch = replace(plan.launch, load=load, log=logs_dir() / f"{kind}-standby.log", mode=LaunchMode.DIRECT)
        try:
            self._spare[kind] = await WorkerProcess.start_standby(launch)
            if kind in self.kinds:
                self._emit_event("standby ready", engine=kind, import_s=round(self._spare[kind].import_s, 3))
        except EnginebayError as error:
            self._not_before[kind] = time.monotonic() + _RETRY_S
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
    same = spare.launch.python == launch.python and launch.mode is LaunchMode.DIRECT
    return same and spare.returncode is None
