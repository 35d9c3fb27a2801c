"""Client of a loaded model: text or chats in, deltas out. Any process on this host can connect one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from enginebay.contract import Delta, Embedding, EngineSpec, Facts, GenerateRequest
from enginebay.contract.engine_messages import Done
from enginebay.contract.negotiate import negotiate
from enginebay.errors import InvalidRequest, WorkerDied
from enginebay.fleet.routing.prompt_encoder import PromptEncoder
from enginebay.worker.client_side.worker_client import WorkerClient


@dataclass(frozen=True, slots=True)
class ReplicaHandle:
    """A model in a running worker: everything another process needs to use it."""

    model: str
    spec: EngineSpec  # adjusted to the installed version
    facts: Facts
    address: str
    source: Path | None  # the stored model files, for the tokenizer and the chat template
    loras: tuple[str, ...] = ()
    task: str = "generate"
    tool_format: str = "auto"  # a tool format's name, or auto: by the chat template
    reasoning_format: str = "auto"  # a reasoning format's name, none, or auto: by the chat template
    sampling: Mapping[str, Any] = field(default_factory=dict)  # the configuration's request defaults
    allow_special_tokens: bool = False  # the model's default for chats
    replica: str = ""  # its name, where the variant may have several


class ModelClient:
    """One connection to the worker of one model."""

    def __init__(self, handle: ReplicaHandle, client: WorkerClient, prompt_encoder: PromptEncoder) -> None:
        self.handle = handle
        self.spec = handle.spec
        self.facts = handle.facts
        self.client = client
        self.loras = handle.loras  # changes at run time
        self.prompt_encoder = prompt_encoder

    @classmethod
    async def connect(cls, handle: ReplicaHandle, death: Callable[[], WorkerDied] | None = None) -> Self:
        client = WorkerClient(handle.address, death)
        try:
            encoder = await asyncio.to_thread(PromptEncoder, handle.source, client, handle.spec.byte_tokens)
            encoder.allow_special_tokens = handle.allow_special_tokens
            return cls(handle, client, encoder)
        except BaseException:
            await client.close()
            raise

    async def prepare(self, request: GenerateRequest, **options: Any) -> tuple[GenerateRequest, dict[str, str]]:
        """Return the request, tokenized unless the engine renders itself, and the translated parameters."""
        translated = self.negotiate(request)
        if self.spec.renders:
            return request, translated
        ids = await self.prompt_encoder.encode_request(request, **options)
        return replace(request, token_ids=ids, text=None, messages=None), translated

    def negotiate(self, request: GenerateRequest) -> dict[str, str]:
        """Return the translated parameters. Raises `Unsupported` for those the engine refuses."""
        translated = negotiate(self.spec.kind, self.spec.request, request, self.facts.refused)
        if request.lora is not None and request.lora not in self.loras:
            known = ", ".join(self.loras) or "none"
            raise InvalidRequest(f"unknown LoRA adapter {request.lora!r}", f"available: {known}", param="lora")
        return translated

    async def generate(self, request: GenerateRequest, **options: Any) -> AsyncIterator[Delta | Done]:
        """Yield deltas as the engine generates them, then `Done`. Leaving the loop early cancels the request."""
        prepared, _ = await self.prepare(request, **options)
        stream = self.client.generate(prepared)
        try:
            async for event in stream:
                yield event
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    async def embed(self, inputs: Sequence[str | Sequence[int]]) -> Embedding:
        ids = [await self.prompt_encoder.encode(text) if isinstance(text, str) else tuple(text) for text in inputs]
        if not ids or not all(ids):
            raise InvalidRequest("an input to embed is empty", param="input")
        return await self.client.embed(ids)

    async def close(self) -> None:
        await self.client.close()
