"""The Python API, on the fake engine and on the embedded model."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from enginebay import AsyncStack, Stack
from enginebay.errors import EnginebayError, InvalidRequest


def test_three_lines_answer() -> None:
    with Stack("smollm2") as stack:
        assert stack.generate("hi", temperature=0) == "Hello there! How can I assist you today?"
        pieces = list(stack.stream("Tell me a story", max_tokens=20))
        assert len(pieces) > 5
        many = stack.generate(["Say yes.", "Say no.", [{"role": "user", "content": "Say maybe."}]], max_tokens=8)
        assert isinstance(many, list) and len(many) == 3 and all(many)


def test_defaults_are_those_of_the_decision_record() -> None:
    with Stack("toy", engine="fake") as stack:
        sampling = stack._stack.build_request("hello").sampling
        assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.1, 0.9, 500)


def test_leaving_a_stream_early_frees_the_engine() -> None:
    with Stack("toy", engine="fake", settings={"step_s": 0.005}) as stack:
        for _ in stack.stream("hello", ignore_eos=True, max_tokens=3000):
            break
        deadline = time.monotonic() + 10  # left alone, it would run for 15
        while stack._run_blocking(stack._stack.worker.client.state()).running:
            assert time.monotonic() < deadline, "the request still runs"
            time.sleep(0.02)


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
    with pytest.raises(InvalidRequest, match="not open"):
        Stack("toy", engine="fake").generate("x")


def test_a_stack_that_cannot_load_can_be_tried_again() -> None:
    stack = Stack("toy", engine="fake", settings={"fail_load": "error"})
    for _ in range(2):
        with pytest.raises(EnginebayError, match="fail_load is error"):
            stack.open()


def test_a_closed_stack_can_be_opened_again() -> None:
    stack = Stack("toy", engine="fake", settings={"script": "again"})
    for _ in range(2):
        with stack:
            assert stack.generate("x") == "again"


def test_strict_makes_a_retired_setting_an_error() -> None:
    with pytest.raises(EnginebayError, match="swap_space"):
        Stack("smollm2", engine="vllm", settings={"swap_space": 4}, strict=True).open()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Restore SIGINT: a background shell starts the tests with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_does_not_wait_for_what_takes_long_to_end() -> None:
    ended = threading.Event()

    async def pieces() -> AsyncIterator[str]:
        try:
            yield "first"
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.3)
            ended.set()

    with Stack("toy", engine="fake") as stack:
        with pytest.raises(KeyboardInterrupt):
            list(stack._iterate(pieces()))
        assert ended.wait(10)  # by itself
        assert stack.generate("hi", max_tokens=2)


def test_an_engine_setting_as_a_keyword_names_where_it_goes() -> None:
    with pytest.raises(InvalidRequest, match="unknown sampling parameter 'n_ctx'") as error:
        Stack("toy", engine="fake", n_ctx=4096)
    assert "settings={" in error.value.hint
