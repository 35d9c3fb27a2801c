"""A worker process that the fleet owns, with a client connected to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from enginebay.fleet.lifecycle.launch_plan import LaunchPlan
from enginebay.fleet.routing.model_client import ModelClient, ReplicaHandle
from enginebay.fleet.routing.prompt_encoder import preload_prompt_files
from enginebay.worker.client_side.worker_process import WorkerProcess


class ModelWorker(ModelClient):
    """One model on one engine, ready for requests. Use it as an async context manager, or `close` it."""

    plan: LaunchPlan
    process: WorkerProcess

    @classmethod
    async def start(
        cls,
        plan: LaunchPlan,
        sampling: Mapping[str, Any] = MappingProxyType({}),
        *,
        spare: WorkerProcess | None = None,
        timeout_s: float = 600.0,
    ) -> Self:
        """Start a worker, or take a standby, and load its model. Raises the engine's error."""
        asyncio.get_running_loop().run_in_executor(None, preload_prompt_files, plan.source)
        if spare is None:
            process = await WorkerProcess.start(plan.launch, timeout_s)
        else:
            process = spare
            await process.assign(plan.launch, timeout_s)
        try:
            worker = await cls.connect(_build_handle(plan, process, sampling), process.build_death_error)
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
        """Stop the worker without a grace period."""
        await super().close()
        await self.process.close(grace_s=0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _build_handle(plan: LaunchPlan, process: WorkerProcess, sampling: Mapping[str, Any]) -> ReplicaHandle:
    assert process.facts is not None
    load = plan.launch.load
    return ReplicaHandle(
        model=plan.model,
        spec=plan.spec,
        facts=process.facts,
        address=process.address,
        source=plan.source,
        loras=tuple(load.loras),
        task=load.task,
        tool_format=plan.tool_format,
        reasoning_format=plan.reasoning_format,
        allow_special_tokens=plan.allow_special_tokens,
        sampling=dict(sampling),
    )
