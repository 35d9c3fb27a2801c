"""The public way out of vLLM: one `generate()` and one task for each request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from enginebay.engines.vllm.outputs import Stream


class Generate:
    """Drives `AsyncLLM.generate()`. Tokens of one turn of the loop leave in one flush. Lives in the loop's thread."""

    def __init__(self, llm: Any, flush: Callable[[], None]) -> None:
        self._llm = llm
        self._flush = flush
        self._flush_is_due = False
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def prepare(self, stream: Stream, prompt: Any, params: Any, lora: Any) -> Any:
        return prompt, params, lora

    async def add(self, stream: Stream, request: Any) -> None:
        self._tasks[stream.number] = asyncio.create_task(self._drive(stream, *request))

    async def abort(self, stream: Stream) -> None:
        task = self._tasks.get(stream.number)
        if task is not None:
            task.cancel()  # generate() aborts its request when it is cancelled

    async def _drive(self, stream: Stream, prompt: Any, params: Any, lora: Any) -> None:
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
