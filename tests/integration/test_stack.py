"""The Python API, on the fake engine and on the embedded model."""

from __future__ import annotations

import asyncio

import pytest

from enginebay import AsyncStack, Stack
from enginebay.errors import EnginebayError, InvalidRequest


def test_three_lines_answer() -> None:
    with Stack("smollm2") as stack:
        assert "Paris" in stack.generate("What is the capital of France?")
        pieces = list(stack.stream("Tell me a story", max_tokens=20))
        assert len(pieces) > 5
        many = stack.generate(["Say yes.", "Say no.", [{"role": "user", "content": "Say maybe."}]], max_tokens=8)
        assert isinstance(many, list) and len(many) == 3 and all(many)


def test_defaults_are_those_of_the_decision_record() -> None:
    with Stack("toy", engine="fake") as stack:
        sampling = stack._stack.request("hello").sampling
        assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.1, 0.9, 500)


def test_leaving_a_stream_early_frees_the_engine() -> None:
    with Stack("toy", engine="fake", settings={"step_s": 0.005}) as stack:
        for _ in stack.stream("hello", ignore_eos=True, max_tokens=3000):
            break
        state = asyncio.run_coroutine_threadsafe(stack._stack.worker.client.state(), stack._loop).result()
        assert state.running == 0


async def test_it_works_inside_a_running_loop_as_in_a_notebook() -> None:
    with Stack("toy", engine="fake") as stack:
        assert stack.generate("hello", max_tokens=5)


async def test_async() -> None:
    async with AsyncStack("toy", engine="fake", settings={"script": "héllo"}) as stack:
        assert await stack.generate("x") == "héllo"
        assert await stack.generate(["x", "y"]) == ["héllo", "héllo"]
        assert [piece async for piece in stack.stream("x")] == ["h", "é", "l", "l", "o"]
        assert len((await stack.embed("some text"))[0]) == 8


def test_mistakes_are_named() -> None:
    with Stack("toy", engine="fake") as stack:
        with pytest.raises(InvalidRequest, match="did you mean temperature"):
            stack.generate("x", temprature=1)
        with pytest.raises(EnginebayError):
            stack.generate("x", num_beams=3)
    with pytest.raises(InvalidRequest, match="not open"):
        stack.generate("x")
