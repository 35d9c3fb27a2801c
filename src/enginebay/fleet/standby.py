"""Spare workers: one for each engine that is to have one, its library imported, waiting for a model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from enginebay.contract import LaunchMode, Load
from enginebay.errors import EnginebayError
from enginebay.fleet.plan import Plan
from enginebay.home import logs_dir
from enginebay.worker.process import Launch, WorkerProcess

_AGAIN_S = 30.0  # after one that could not be started

Event = Callable[..., None]


class Standbys:
    """Started in the background, so that they never keep a load waiting."""

    def __init__(self, kinds: Iterable[str], event: Event) -> None:
        self._kinds = frozenset(kinds)
        self._event = event
        self._spare: dict[str, WorkerProcess] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self._closed = False

    def take(self, launch: Launch) -> WorkerProcess | None:
        """The spare one for this launch, if there is one; the caller owns it from now on."""
        spare = self._spare.get(launch.load.kind)
        if spare is None or spare.launch.python != launch.python or launch.mode is not LaunchMode.DIRECT:
            return None
        del self._spare[launch.load.kind]
        return spare if spare.returncode is None else None

    def waiting(self) -> dict[str, int]:
        """Process ids by engine, of those that are ready."""
        return {kind: spare.pid for kind, spare in self._spare.items() if spare.returncode is None}

    def keep(self, plans: Iterable[Plan]) -> None:
        """Start what is missing. To be called when nothing is being loaded: imports take a core."""
        for plan in plans:
            kind = plan.spec.kind
            spare = self._spare.get(kind)
            if spare is not None and spare.returncode is not None:
                self._starting[kind] = asyncio.create_task(self._drop(self._spare.pop(kind)))
            wanted = kind in self._kinds and kind not in self._spare and not self._closed
            if wanted and kind not in self._starting and time.monotonic() >= self._not_before.get(kind, 0.0):
                self._starting[kind] = asyncio.create_task(self._start(plan))

    async def _start(self, plan: Plan) -> None:
        kind = plan.spec.kind
        load = Load(kind=kind, engine=plan.spec.engine, model="(standby)", path="")
        launch = replace(plan.launch, load=load, log=logs_dir() / f"{kind}-standby.log", mode=LaunchMode.DIRECT)
        try:
            self._spare[kind] = await WorkerProcess.stand_by(launch)
            self._event("standby ready", engine=kind, import_s=round(self._spare[kind].import_s, 3))
        except EnginebayError as error:
            self._not_before[kind] = time.monotonic() + _AGAIN_S
            self._event("standby failed", level="warning", engine=kind, error=error.message)
        finally:
            self._starting.pop(kind, None)

    async def _drop(self, spare: WorkerProcess) -> None:
        await spare.close(grace_s=0)
        self._starting.pop(spare.launch.load.kind, None)

    async def close(self) -> None:
        self._closed = True
        for task in list(self._starting.values()):
            task.cancel()
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        await asyncio.gather(*(spare.close() for spare in self._spare.values()))
        self._spare.clear()
