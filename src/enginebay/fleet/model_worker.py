"""A worker process of our own, with a session to it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from enginebay.fleet.model_client import ModelClient, Resident
from enginebay.fleet.plan import Plan
from enginebay.worker.process import WorkerProcess


class ModelWorker(ModelClient):
    """One model on one engine, ready for requests. `close` it, or use it as an async context manager."""

    plan: Plan
    process: WorkerProcess

    @classmethod
    async def open(cls, plan: Plan, sampling: Mapping[str, Any] = MappingProxyType({})) -> Self:
        """Start the worker and load its model. Raises what the engine said when it cannot."""
        process = await WorkerProcess.start(plan.launch)
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
