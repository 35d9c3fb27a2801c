"""Generation and embeddings through AsyncLLM's public `generate()` and `encode()`, with one task per request."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from enginebay.engines.vllm.request_stream import RequestStream

_numbers = itertools.count()


async def generate_greedy(llm: Any, prompt: list[int], count: int) -> list[int]:
    """Return `count` greedily decoded tokens."""
    from vllm import SamplingParams
    from vllm.inputs import tokens_input

    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    ids: list[int] = []
    async for output in llm.generate(tokens_input(prompt), params, f"own-{next(_numbers)}"):
        ids = list(output.outputs[0].token_ids)
    return ids


async def compute_embeddings(llm: Any, inputs: list[list[int]]) -> list[tuple[float, ...]]:
    """Return one embedding per input."""
    from vllm import PoolingParams
    from vllm.inputs import tokens_input

    async def compute_one(ids: list[int]) -> tuple[float, ...]:
        embedding: Any = None
        name = f"embed-{next(_numbers)}"
        async for output in llm.encode(tokens_input(ids), PoolingParams(task="embed"), name):
            embedding = output.outputs.data
        return tuple(embedding.float().flatten().tolist())

    return list(await asyncio.gather(*(compute_one(ids) for ids in inputs)))


class GenerateDriver:
    """Drives `AsyncLLM.generate()`. Flushes once per iteration of the event loop. Runs in the loop's thread."""

    def __init__(self, llm: Any, flush: Callable[[], None]) -> None:
        self._llm = llm
        self._flush = flush
        self._flush_is_due = False
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def prepare(self, stream: RequestStream, prompt: Any, params: Any, lora: Any) -> Any:
        return prompt, params, lora

    async def add(self, stream: RequestStream, request: Any) -> None:
        self._tasks[stream.number] = asyncio.create_task(self._drive(stream, *request))

    async def abort(self, stream: RequestStream) -> None:
        task = self._tasks.get(stream.number)
        if task is not None:
            task.cancel()  # generate() aborts the request when cancelled

    async def _drive(self, stream: RequestStream, prompt: Any, params: Any, lora: Any) -> None:
        try:
            async for output in self._llm.generate(prompt, params, str(stream.number), lora_request=lora):
                stream.put(output)
                self._flush_soon()
        except Exception as error:
            stream.put(error)
        finally:
            self._tasks.pop(stream.number, None)

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_is_due = False
        self._flush()
