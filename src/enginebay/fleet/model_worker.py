"""A running worker with its model's prompts in front: text or chats in, deltas out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from enginebay.contract import Delta, Embedding, Facts, GenerateRequest
from enginebay.contract.messages import Done
from enginebay.contract.negotiate import negotiate
from enginebay.errors import InvalidRequest
from enginebay.fleet.plan import Plan
from enginebay.fleet.prompts import Prompts
from enginebay.worker.client import WorkerClient
from enginebay.worker.process import WorkerProcess


class ModelWorker:
    """One model on one engine, ready for requests. `close` it, or use it as an async context manager."""

    def __init__(self, plan: Plan, process: WorkerProcess, client: WorkerClient, prompts: Prompts) -> None:
        assert process.facts is not None
        self.plan = plan
        self.process = process
        self.client = client
        self.prompts = prompts
        self.facts: Facts = process.facts

    @classmethod
    async def open(cls, plan: Plan) -> ModelWorker:
        """Start the worker and load its model. Raises what the engine said when it cannot."""
        process = await WorkerProcess.start(plan.launch)
        client = WorkerClient(process.address, process.death)
        try:
            return cls(plan, process, client, await asyncio.to_thread(Prompts, plan.source, client))
        except BaseException:
            await client.close()
            await process.close()
            raise

    async def prepare(self, request: GenerateRequest, **options: Any) -> tuple[GenerateRequest, dict[str, str]]:
        """The request as the engine gets it, and which parameters are translated into what."""
        spec = self.plan.spec
        translated = negotiate(spec.kind, spec.request, request, self.facts.refused)
        if request.lora is not None and request.lora not in self.plan.launch.load.loras:
            known = ", ".join(self.plan.launch.load.loras) or "none"
            raise InvalidRequest(
                f"there is no adapter {request.lora!r}", f"configured for this model: {known}", param="lora"
            )
        ids = await self.prompts.token_ids(request, **options)
        return replace(request, token_ids=ids, text=None, messages=None), translated

    async def generate(self, request: GenerateRequest, **options: Any) -> AsyncIterator[Delta | Done]:
        """Deltas as the engine makes them, then `Done`. Leaving the loop early cancels the request."""
        prepared, _ = await self.prepare(request, **options)
        stream = self.client.generate(prepared)
        try:
            async for event in stream:
                yield event
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    async def embed(self, inputs: Sequence[str | Sequence[int]]) -> Embedding:
        ids = [await self.prompts.encode(one) if isinstance(one, str) else tuple(one) for one in inputs]
        if not ids or not all(ids):
            raise InvalidRequest("an input to embed is empty", param="input")
        return await self.client.embed(ids)

    async def close(self) -> None:
        await self.client.close()
        await self.process.close()

    async def __aenter__(self) -> ModelWorker:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
