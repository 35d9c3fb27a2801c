"""A worker process of our own, with a session to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from enginebay.fleet.model_client import ModelClient, Resident
from enginebay.fleet.plan import Plan
from enginebay.fleet.prompts import read_ahead
from enginebay.worker.process import WorkerProcess


class ModelWorker(ModelClient):
    """One model on one engine, ready for requests. `close` it, or use it as an async context manager."""

    plan: Plan
    process: WorkerProcess

    @classmethod
    async def open(
        cls,
        plan: Plan,
        sampling: Mapping[str, Any] = MappingProxyType({}),
        *,
        spare: WorkerProcess | None = None,
        timeout_s: float = 600.0,
    ) -> Self:
        """Start the worker, or take a spare one, and load its model. Raises what the engine said when it cannot."""
        asyncio.get_running_loop().run_in_executor(None, read_ahead, plan.source)
        if spare is None:
            process = await WorkerProcess.start(plan.launch, timeout_s)
        else:
            process = spare
            await process.assign(plan.launch, timeout_s)
        try:
            worker = await cls.connect(_resident(plan, process, sampling), process.death)
        except BaseException:
            await process.close()
            raise
        worker.plan = plan
        worker.process = process
        return worker

    async def close(self) -> None:
        await super().close()
        await self.process.close()

    async def kill(self) -> None:
        """At once: it is dead, or not to be trusted."""
        await super().close()
        await self.process.close(grace_s=0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _resident(plan: Plan, process: WorkerProcess, sampling: Mapping[str, Any]) -> Resident:
    assert process.facts is not None
    load = plan.launch.load
    return Resident(
        model=plan.model,
        spec=plan.spec,
        facts=process.facts,
        address=process.address,
        source=plan.source,
        loras=tuple(load.loras),
        task=load.task,
        tool_format=plan.tool_format,
        sampling=dict(sampling),
    )
