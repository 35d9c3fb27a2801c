"""What the engine asks vLLM for its own purposes, through the public interface."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

_numbers = itertools.count()


async def greedy(llm: Any, prompt: list[int], count: int) -> list[int]:
    """The likeliest `count` tokens after the prompt."""
    from vllm import SamplingParams
    from vllm.inputs import tokens_input

    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    found: list[int] = []
    async for output in llm.generate(tokens_input(prompt), params, f"own-{next(_numbers)}"):
        found = list(output.outputs[0].token_ids)
    return found


async def vectors(llm: Any, inputs: list[list[int]]) -> list[tuple[float, ...]]:
    """One embedding for each input."""
    from vllm import PoolingParams
    from vllm.inputs import tokens_input

    async def one(ids: list[int]) -> tuple[float, ...]:
        found: Any = None
        name = f"embed-{next(_numbers)}"
        async for output in llm.encode(tokens_input(ids), PoolingParams(task="embed"), name):
            found = output.outputs.data
        return tuple(found.float().flatten().tolist())

    return list(await asyncio.gather(*(one(ids) for ids in inputs)))
