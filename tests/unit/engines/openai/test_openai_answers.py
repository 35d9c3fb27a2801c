"""What a server streams, and what becomes of it: answers and failures."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from enginebay.contract import FinishReason, GenerateRequest, Sampling
from enginebay.errors import (
    ContextOverflow,
    EnginebayError,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    RequestError,
    Unreachable,
)
from tests.unit.engines.openai.scripted import (
    HELLO,
    KEY,
    MODEL,
    USUAL,
    Answering,
    Asked,
    answer,
    answered,
    delta,
    engine_of,
    events,
    head,
    serving,
    slowly,
    stream,
    then_close,
    then_silence,
    usage,
)

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


# Answers


async def test_an_answer_streams_and_is_counted_by_the_server() -> None:
    sink, server = await answered(stream())
    assert sink.text() == "Hi there"
    kinds = [one[0] for one in sink.said if one[0] != "flush"]
    assert kinds == ["accepted", "token", "token", "usage", "finish"]
    assert sink.of("usage") == [(7, 2, 3)] and sink.of("finish") == [(0, STOP, None)]
    assert server.asked[0].path == "/v1/chat/completions"
    assert server.asked[0].json.items() >= {"model": MODEL, "stream": True, "max_tokens": 8}.items()


@pytest.mark.parametrize("size", [1, 2, 5, 17])
@pytest.mark.parametrize("chunk", [1, 11, 10_000])
async def test_an_answer_may_be_cut_anywhere(size: int, chunk: int) -> None:
    sink, _ = await answered(slowly(stream(size=chunk), size))
    assert sink.text() == "Hi there"
    assert sink.of("usage") == [(7, 2, 3)] and sink.of("finish") == [(0, STOP, None)]


async def test_what_comes_together_goes_out_together() -> None:
    sink, _ = await answered(stream())
    assert sum(one == ("flush",) for one in sink.said) <= 2  # the head may come alone


async def test_tokens_leave_as_they_come() -> None:
    def part(*chunks: Any) -> bytes:
        data = events(*chunks, done=False)
        return b"%x\r\n%s\r\n" % (len(data), data)

    go_on = asyncio.Event()

    async def write(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(transfer_encoding="chunked") + part(delta(content="first")))
        await go_on.wait()
        writer.write(part(delta(content=" second", finish="length")) + b"0\r\n\r\n")

    async with serving(write) as server, engine_of(server) as (engine, sink):
        engine.submit(1, HELLO)
        await sink.until(lambda: sink.text() == "first" and sink.said[-1] == ("flush",))
        assert engine.running() == 1
        go_on.set()
        await sink.ended()
        assert sink.text() == "first second" and sink.of("finish") == [(0, LENGTH, None)]


async def test_a_plain_prompt() -> None:
    chunks = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("a", "b")]
    last = {"choices": [{"index": 0, "text": "", "finish_reason": "stop", "stop_reason": "END"}]}
    request = GenerateRequest(token_ids=(1, 2, 3), sampling=Sampling(max_tokens=2))
    sink, server = await answered(stream(events(*chunks, last)), request)
    assert sink.text() == "ab" and sink.of("finish") == [(0, STOP, "END")] and sink.of("accepted") == [(3,)]
    assert server.asked[0].path == "/v1/completions" and server.asked[0].json["prompt"] == [1, 2, 3]


async def test_several_choices_end_each_for_itself_and_the_last_with_the_count() -> None:
    body = events(delta(0, content="a"), delta(1, content="x"), delta(1, finish="length"), delta(0, content="b"),
                  delta(0, finish="stop"), usage(3, 4))  # fmt: skip
    sink, _ = await answered(stream(body), replace(HELLO, sampling=Sampling(n=2)))
    assert (sink.text(choice=0), sink.text(choice=1)) == ("ab", "x")
    ends = [one[0:1] + one[2:] for one in sink.said if one[0] in ("finish", "usage")]
    assert ends == [("finish", 1, LENGTH, None), ("usage", 3, 4, 0), ("finish", 0, STOP, None)]


@pytest.mark.parametrize("done", [True, False])
async def test_a_server_that_ignores_n_is_told_on(done: bool) -> None:
    body = events(delta(content="a"), delta(finish="stop"), done=done)
    sink, _ = await answered(stream(body), replace(HELLO, sampling=Sampling(n=2)))
    assert "gave 1 of 2 answers" in sink.failure().message


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ("stop", (STOP, None)),
        ("length", (LENGTH, None)),
        ("tool_calls", (STOP, None)),
        ("content_filter", (STOP, "content_filter")),
        ("eos_token", (STOP, None)),
    ],
)
async def test_how_an_answer_ends(reason: str, ending: tuple[FinishReason, str | None]) -> None:
    sink, _ = await answered(stream(events(delta(content="a"), delta(finish=reason))))
    assert sink.of("finish") == [(0, *ending)]


async def test_an_answer_the_server_gave_up_on_is_an_error() -> None:
    sink, _ = await answered(stream(events(delta(content="a"), delta(finish="error"))))
    assert isinstance(sink.failure(), EngineFailed)


async def test_thoughts_come_in_tags_before_the_answer() -> None:
    body = events(delta(reasoning_content="let me"), delta(reasoning=" think", content=None), delta(content="42"),
                  delta(finish="stop"))  # fmt: skip
    sink, _ = await answered(stream(body))
    assert sink.text() == "<think>let me think</think>42"


async def test_thoughts_alone_are_closed() -> None:
    sink, _ = await answered(stream(events(delta(reasoning="hm"), delta(finish="length"))))
    assert sink.text() == "<think>hm</think>"


async def test_tool_calls_become_text_and_what_is_said_meanwhile_follows() -> None:
    def call(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
        return delta(tool_calls=[{"index": index, "function": {"name": name, "arguments": arguments}}])

    body = events(delta(reasoning="look"), call(0, "", "f"), call(1, '{"b"', "g"), call(0, '{"a": 1}'),
                  delta(content="so"), call(1, ": 2}"), delta(finish="tool_calls"))  # fmt: skip
    sink, _ = await answered(stream(body))
    assert sink.text() == (
        '<think>look</think><tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"b": 2}}\n</tool_call>so'
    )


async def test_without_a_count_nothing_is_counted_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    bare = stream(events(delta(content="a"), delta(finish="stop")))
    with caplog.at_level(logging.WARNING):
        async with serving(bare) as server, engine_of(server) as (engine, sink):
            for number in (1, 2):
                engine.submit(number, HELLO)
                await sink.ended(number)
                assert sink.of("usage", number) == []
    assert sum("not counted" in record.message for record in caplog.records) == 1


async def test_the_end_may_come_without_done_or_by_closing() -> None:
    body = events(delta(content="a"), delta(finish="stop") | usage(1, 1) | {"choices": delta(finish="stop")["choices"]},
                  done=False)  # fmt: skip
    for script in (stream(body), then_close(head() + body), then_close(head() + body.removesuffix(b"\n\n"))):
        sink, _ = await answered(script)
        assert sink.text() == "a" and sink.of("usage") == [(1, 1, 0)] and sink.of("finish") == [(0, STOP, None)]


async def test_comments_are_no_tokens() -> None:
    waiting = b": still loading\n\n" * 3
    sink, _ = await answered(stream(waiting + USUAL))
    assert sink.text() == "Hi there"
    sink, _ = await answered(slowly(head() + waiting * 1000, 17, 0.02), first_token_timeout_s=0.3)
    assert isinstance(sink.failure(), Unreachable) and "no token" in sink.failure().message


async def test_odd_numbers_and_halves_of_characters_do_no_harm() -> None:
    odd = {"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 2**40, "prompt_tokens_details": 5}}
    ending = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": 2**40}]}
    sink, _ = await answered(stream(events(delta(content="a\ud83d"), ending, odd)))
    assert sink.text() == "a\ufffd" and sink.of("usage") == [(0, 0, 0)] and sink.of("finish") == [(0, STOP, None)]


# Failures


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (then_close(head() + events(delta(content="a"), done=False)), EngineFailed, "breaks off"),
        (then_close(stream()[: len(stream()) // 2]), EngineFailed, "breaks off"),
        (stream(b"data: {nonsense\n\n"), EngineFailed, "not JSON"),
        (stream(b"data: 5\n\n"), EngineFailed, "no part of an answer"),
        (stream(events({"choices": [5]})), EngineFailed, "no object"),
        (stream(events(delta(7, content="a"))), EngineFailed, "not asked for"),
        (stream(events(delta(content=["a"]))), EngineFailed, "no text"),
        (stream(events(done=True)), EngineFailed, "breaks off"),
        (head(transfer_encoding="chunked") + b"zz\r\n", EngineFailed, "chunk"),
        (b"SSH-2.0-OpenSSH\r\n", EngineFailed, "not HTTP"),
        (answer(200, {"choices": []}), EngineFailed, "application/json instead of a stream"),
        (answer(200, b"<html>", "text/html"), EngineFailed, "text/html"),
        (head(content_encoding="gzip") + b"\x1f\x8b", EngineFailed, "compresses"),
        (stream(b"data: " + b"x" * (5 << 20)), EngineFailed, "MiB"),
        (stream(events(delta(content="a"), {"error": {"message": "out of memory"}})), EngineFailed, "out of memory"),
        (answer(400, {"error": {"message": "bad"}}), InvalidRequest, "bad"),
        (answer(400, {"error": {"code": "context_length_exceeded"}}), ContextOverflow, "refuses"),
        (answer(401, {"error": {"message": KEY}}), Unreachable, "refuses our key"),
        (answer(404, {"error": {"message": "no model"}}), EngineFailed, "no model"),
        (answer(302, b"", Location="http://elsewhere/"), EngineFailed, "not followed"),
        (answer(429, {}, Retry_After="3600"), Overloaded, "takes no more requests now"),
        (answer(500, b"x" * 300_000), Unreachable, "500"),
    ],
)
async def test_failures_are_told_without_the_key_and_to_clients_without_the_host(
    script: bytes | Answering, error: type[EnginebayError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    sink, server = await answered(script, key_env="SOME_KEY")
    found = sink.failure()
    assert type(found) is error and words in found.message
    for_clients = isinstance(found, (RequestError, Overloaded))
    shown = str(found) if for_clients else found.message
    assert ("127.0.0.1" in shown, str(server.port) in shown) == (not for_clients, not for_clients)
    assert KEY not in str(found)
    assert len(server.asked) == 1 and server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert not sink.of("finish")


async def test_a_failed_request_harms_no_other() -> None:
    async with serving(then_close(head() + b"data: {"), stream()) as server, engine_of(server) as (engine, sink):
        engine.submit(1, HELLO)
        await sink.ended(1)
        engine.submit(2, HELLO)
        await sink.ended(2)
        assert isinstance(sink.failure(1), EngineFailed) and sink.text(2) == "Hi there"


async def test_silence_is_not_waited_for_forever() -> None:
    sink, _ = await answered(then_silence(b""), first_token_timeout_s=0.2)
    assert isinstance(sink.failure(), Unreachable) and "did not answer" in sink.failure().message
    sink, _ = await answered(then_silence(head()), first_token_timeout_s=0.2)
    assert isinstance(sink.failure(), Unreachable) and "no token" in sink.failure().message
    begun = head() + events(delta(content="a"), done=False)
    sink, _ = await answered(then_silence(begun), token_timeout_s=0.2)
    assert isinstance(sink.failure(), Unreachable) and "silent" in sink.failure().message and sink.text() == "a"


async def test_an_answer_that_lacks_only_its_count_is_still_an_answer() -> None:
    whole = head() + events(delta(content="a"), delta(finish="stop"), done=False)
    sink, _ = await answered(then_silence(whole), token_timeout_s=0.2)
    assert sink.text() == "a" and sink.of("finish") == [(0, STOP, None)] and not sink.of("error")
