"""Streamed responses and failures."""

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
from tests.unit.engines.openai.scripted_server import (
    HELLO,
    KEY,
    MODEL,
    USUAL,
    Answering,
    ReceivedRequest,
    build_delta,
    build_head,
    build_response,
    build_stream,
    build_usage,
    encode_events,
    make_closing_writer,
    make_hanging_writer,
    make_slow_writer,
    open_engine,
    run_script,
    run_scripted_server,
)

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


# Answers


async def test_an_answer_streams_and_is_counted_by_the_server() -> None:
    sink, server = await run_script(build_stream())
    assert sink.text() == "Hi there"
    kinds = [one[0] for one in sink.said if one[0] != "flush"]
    assert kinds == ["accepted", "token", "token", "usage", "finish"]
    assert sink.select("usage") == [(7, 2, 3)] and sink.select("finish") == [(0, STOP, None)]
    assert server.asked[0].path == "/v1/chat/completions"
    assert server.asked[0].json.items() >= {"model": MODEL, "stream": True, "max_tokens": 8}.items()


@pytest.mark.parametrize("size", [1, 2, 5, 17])
@pytest.mark.parametrize("chunk", [1, 11, 10_000])
async def test_an_answer_may_be_cut_anywhere(size: int, chunk: int) -> None:
    sink, _ = await run_script(make_slow_writer(build_stream(size=chunk), size))
    assert sink.text() == "Hi there"
    assert sink.select("usage") == [(7, 2, 3)] and sink.select("finish") == [(0, STOP, None)]


async def test_one_read_is_one_flush() -> None:
    sink, _ = await run_script(build_stream())
    assert sum(one == ("flush",) for one in sink.said) <= 2  # the head may come alone


async def test_tokens_leave_as_they_come() -> None:
    def part(*chunks: Any) -> bytes:
        data = encode_events(*chunks, done=False)
        return b"%x\r\n%s\r\n" % (len(data), data)

    go_on = asyncio.Event()

    async def write(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(build_head(transfer_encoding="chunked") + part(build_delta(content="first")))
        await go_on.wait()
        writer.write(part(build_delta(content=" second", finish="length")) + b"0\r\n\r\n")

    async with run_scripted_server(write) as server, open_engine(server) as (engine, sink):
        engine.submit(1, HELLO)
        await sink.wait_until(lambda: sink.text() == "first" and sink.said[-1] == ("flush",))
        assert engine.running() == 1
        go_on.set()
        await sink.wait_ended()
        assert sink.text() == "first second" and sink.select("finish") == [(0, LENGTH, None)]


async def test_a_plain_prompt() -> None:
    chunks = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("a", "b")]
    last = {"choices": [{"index": 0, "text": "", "finish_reason": "stop", "stop_reason": "END"}]}
    request = GenerateRequest(token_ids=(1, 2, 3), sampling=Sampling(max_tokens=2))
    sink, server = await run_script(build_stream(encode_events(*chunks, last)), request)
    assert sink.text() == "ab" and sink.select("finish") == [(0, STOP, "END")] and sink.select("accepted") == [(3,)]
    assert server.asked[0].path == "/v1/completions" and server.asked[0].json["prompt"] == [1, 2, 3]


async def test_choices_finish_separately_and_the_last_with_the_usage() -> None:
    body = encode_events(build_delta(0, content="a"), build_delta(1, content="x"), build_delta(1, finish="length"), build_delta(0, content="b"),
                  build_delta(0, finish="stop"), build_usage(3, 4))  # fmt: skip
    sink, _ = await run_script(build_stream(body), replace(HELLO, sampling=Sampling(n=2)))
    assert (sink.text(choice=0), sink.text(choice=1)) == ("ab", "x")
    ends = [one[0:1] + one[2:] for one in sink.said if one[0] in ("finish", "usage")]
    assert ends == [("finish", 1, LENGTH, None), ("usage", 3, 4, 0), ("finish", 0, STOP, None)]


@pytest.mark.parametrize("done", [True, False])
async def test_a_server_that_ignores_n_is_an_error(done: bool) -> None:
    body = encode_events(build_delta(content="a"), build_delta(finish="stop"), done=done)
    sink, _ = await run_script(build_stream(body), replace(HELLO, sampling=Sampling(n=2)))
    assert "returned 1 of 2 choices" in sink.get_failure().message


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
    sink, _ = await run_script(build_stream(encode_events(build_delta(content="a"), build_delta(finish=reason))))
    assert sink.select("finish") == [(0, *ending)]


async def test_an_aborted_response_is_an_error() -> None:
    sink, _ = await run_script(build_stream(encode_events(build_delta(content="a"), build_delta(finish="error"))))
    assert isinstance(sink.get_failure(), EngineFailed)


async def test_reasoning_comes_in_tags_before_the_answer() -> None:
    body = encode_events(build_delta(reasoning_content="let me"), build_delta(reasoning=" think", content=None), build_delta(content="42"),
                  build_delta(finish="stop"))  # fmt: skip
    sink, _ = await run_script(build_stream(body))
    assert sink.text() == "<think>let me think</think>42"


async def test_reasoning_alone_is_closed() -> None:
    sink, _ = await run_script(build_stream(encode_events(build_delta(reasoning="hm"), build_delta(finish="length"))))
    assert sink.text() == "<think>hm</think>"


async def test_tool_calls_become_text_and_content_during_calls_follows() -> None:
    def call(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
        return build_delta(tool_calls=[{"index": index, "function": {"name": name, "arguments": arguments}}])

    body = encode_events(build_delta(reasoning="look"), call(0, "", "f"), call(1, '{"b"', "g"), call(0, '{"a": 1}'),
                  build_delta(content="so"), call(1, ": 2}"), build_delta(finish="tool_calls"))  # fmt: skip
    sink, _ = await run_script(build_stream(body))
    assert sink.text() == (
        '<think>look</think><tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"b": 2}}\n</tool_call>so'
    )


async def test_without_usage_nothing_is_counted_and_one_warning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bare = build_stream(encode_events(build_delta(content="a"), build_delta(finish="stop")))
    with caplog.at_level(logging.WARNING):
        async with run_scripted_server(bare) as server, open_engine(server) as (engine, sink):
            for number in (1, 2):
                engine.submit(number, HELLO)
                await sink.wait_ended(number)
                assert sink.select("usage", number) == []
    assert sum("not counted" in record.message for record in caplog.records) == 1


async def test_the_end_may_come_without_done_or_by_closing() -> None:
    body = encode_events(build_delta(content="a"), build_delta(finish="stop") | build_usage(1, 1) | {"choices": build_delta(finish="stop")["choices"]},
                  done=False)  # fmt: skip
    for script in (
        build_stream(body),
        make_closing_writer(build_head() + body),
        make_closing_writer(build_head() + body.removesuffix(b"\n\n")),
    ):
        sink, _ = await run_script(script)
        assert sink.text() == "a" and sink.select("usage") == [(1, 1, 0)] and sink.select("finish") == [(0, STOP, None)]


async def test_comments_are_no_tokens() -> None:
    waiting = b": still loading\n\n" * 3
    sink, _ = await run_script(build_stream(waiting + USUAL))
    assert sink.text() == "Hi there"
    sink, _ = await run_script(make_slow_writer(build_head() + waiting * 1000, 17, 0.02), first_token_timeout_s=0.3)
    assert isinstance(sink.get_failure(), Unreachable) and "no token" in sink.get_failure().message


async def test_odd_numbers_and_lone_surrogates_do_no_harm() -> None:
    odd = {"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 2**40, "prompt_tokens_details": 5}}
    ending = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": 2**40}]}
    sink, _ = await run_script(build_stream(encode_events(build_delta(content="a\ud83d"), ending, odd)))
    assert (
        sink.text() == "a\ufffd" and sink.select("usage") == [(0, 0, 0)] and sink.select("finish") == [(0, STOP, None)]
    )


# Failures


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (
            make_closing_writer(build_head() + encode_events(build_delta(content="a"), done=False)),
            EngineFailed,
            "truncated response",
        ),
        (make_closing_writer(build_stream()[: len(build_stream()) // 2]), EngineFailed, "truncated response"),
        (build_stream(b"data: {nonsense\n\n"), EngineFailed, "not JSON"),
        (build_stream(b"data: 5\n\n"), EngineFailed, "not a completion chunk"),
        (build_stream(encode_events({"choices": [5]})), EngineFailed, "not an object"),
        (build_stream(encode_events(build_delta(7, content="a"))), EngineFailed, "not requested"),
        (build_stream(encode_events(build_delta(content=["a"]))), EngineFailed, "not a string"),
        (build_stream(encode_events(done=True)), EngineFailed, "truncated response"),
        (build_head(transfer_encoding="chunked") + b"zz\r\n", EngineFailed, "chunk"),
        (b"SSH-2.0-OpenSSH\r\n", EngineFailed, "not HTTP"),
        (build_response(200, {"choices": []}), EngineFailed, "application/json instead of an event stream"),
        (build_response(200, b"<html>", "text/html"), EngineFailed, "text/html"),
        (build_head(content_encoding="gzip") + b"\x1f\x8b", EngineFailed, "compressed"),
        (build_stream(b"data: " + b"x" * (5 << 20)), EngineFailed, "MiB"),
        (
            build_stream(encode_events(build_delta(content="a"), {"error": {"message": "out of memory"}})),
            EngineFailed,
            "out of memory",
        ),
        (build_response(400, {"error": {"message": "bad"}}), InvalidRequest, "bad"),
        (build_response(400, {"error": {"code": "context_length_exceeded"}}), ContextOverflow, "rejects"),
        (build_response(401, {"error": {"message": KEY}}), Unreachable, "rejects the API key"),
        (build_response(404, {"error": {"message": "no model"}}), EngineFailed, "no model"),
        (build_response(302, b"", Location="http://elsewhere/"), EngineFailed, "does not follow"),
        (build_response(429, {}, Retry_After="3600"), Overloaded, "is overloaded"),
        (build_response(500, b"x" * 300_000), Unreachable, "500"),
    ],
)
async def test_failures_hide_the_key_and_from_clients_the_host(
    script: bytes | Answering, error: type[EnginebayError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    sink, server = await run_script(script, key_env="SOME_KEY")
    failure = sink.get_failure()
    assert type(failure) is error and words in failure.message
    for_clients = isinstance(failure, (RequestError, Overloaded))
    shown = str(failure) if for_clients else failure.message
    assert ("127.0.0.1" in shown, str(server.port) in shown) == (not for_clients, not for_clients)
    assert KEY not in str(failure)
    assert len(server.asked) == 1 and server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert not sink.select("finish")


async def test_a_failed_request_harms_no_other() -> None:
    async with (
        run_scripted_server(make_closing_writer(build_head() + b"data: {"), build_stream()) as server,
        open_engine(server) as (engine, sink),
    ):
        engine.submit(1, HELLO)
        await sink.wait_ended(1)
        engine.submit(2, HELLO)
        await sink.wait_ended(2)
        assert isinstance(sink.get_failure(1), EngineFailed) and sink.text(2) == "Hi there"


async def test_a_silent_server_times_out() -> None:
    sink, _ = await run_script(make_hanging_writer(b""), first_token_timeout_s=0.2)
    assert isinstance(sink.get_failure(), Unreachable) and "did not respond" in sink.get_failure().message
    sink, _ = await run_script(make_hanging_writer(build_head()), first_token_timeout_s=0.2)
    assert isinstance(sink.get_failure(), Unreachable) and "no token" in sink.get_failure().message
    begun = build_head() + encode_events(build_delta(content="a"), done=False)
    sink, _ = await run_script(make_hanging_writer(begun), token_timeout_s=0.2)
    assert (
        isinstance(sink.get_failure(), Unreachable)
        and "no further token" in sink.get_failure().message
        and sink.text() == "a"
    )


async def test_a_response_that_lacks_only_the_usage_is_complete() -> None:
    whole = build_head() + encode_events(build_delta(content="a"), build_delta(finish="stop"), done=False)
    sink, _ = await run_script(make_hanging_writer(whole), token_timeout_s=0.2)
    assert sink.text() == "a" and sink.select("finish") == [(0, STOP, None)] and not sink.select("error")
