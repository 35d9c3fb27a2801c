"""Parsing of streamed responses: a malformed one is an error and never counts tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from enginebay.lab.loadgen.http_framing import parse_head
from enginebay.lab.loadgen.response_parser import ParsedResponse, parse_response

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def delta(text: str | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def answer(*events: bytes, end: bool = True, head: bytes = HEAD) -> ParsedResponse:
    """Parse a response with each event in its own chunk and part, one second apart."""
    chunks = [b"%x\r\n%s\r\n" % (len(one), one) for one in events]
    parts = [head, *chunks, *([b"0\r\n\r\n"] if end else [])]
    return parse_response(parse_head(head), parts, [float(number) for number in range(len(parts))])


def test_output_is_stamped_and_counted_by_usage() -> None:
    found = answer(
        event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}),
        event(delta("Hel")),
        event(delta("lo", "length")),
        event(USAGE),
        event(b"[DONE]"),
    )
    assert found.error is None, found.detail
    assert found.arrivals == [2.0, 3.0]  # the role is no output
    assert (found.text, found.finish_reason) == ("Hello", "length")
    assert (found.input_tokens, found.output_tokens) == (3, 2)


def test_many_tokens_in_one_event_are_as_many_as_usage_says() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 40}}
    found = answer(event(delta("forty tokens", "stop")), event(usage), event(b"[DONE]"))
    assert found.error is None and found.output_tokens == 40 and len(found.arrivals) == 1


def test_completions_reasoning_and_tool_calls_are_output() -> None:
    found = answer(
        event({"choices": [{"text": "a"}]}),
        event({"choices": [{"delta": {"reasoning_content": "b"}}]}),
        event({"choices": [{"delta": {"tool_calls": [{"index": 0}]}, "finish_reason": "tool_calls"}]}),
        event(USAGE),
    )
    assert found.error is None and len(found.arrivals) == 3 and found.text == "ab"


def test_comments_names_and_crlf_are_allowed() -> None:
    lines = b": ping\r\n\r\nevent: message\r\ndata:" + json.dumps(delta("x", "stop")).encode() + b"\r\n\r\n"
    found = answer(lines, event(USAGE))
    assert found.error is None and found.text == "x"


def test_queue_time_and_cached_tokens_of_a_bay_server() -> None:
    usage = {**USAGE["usage"], "prompt_tokens_details": {"cached_tokens": 2}, "enginebay": {"queue_s": 0.25}}  # type: ignore[dict-item]
    found = answer(event(delta("x", "stop")), event({"choices": [], "usage": usage}))
    assert (found.cached_tokens, found.queue_s) == (2, 0.25)


@pytest.mark.parametrize(
    ("error", "events", "end"),
    [
        ("no_usage", (event(delta("x", "stop")), event(b"[DONE]")), True),
        ("closed", (event(delta("x")),), False),
        ("closed", (event(delta("x")), event(USAGE)), True),  # complete framing, but no finish reason
        ("closed", (event(delta("x", "stop")), event(USAGE)), False),
        ("garbage", (event(b"{not json"),), True),
        ("garbage", (event({"choices": "none"}),), True),
        ("garbage", (b"hello\n\n",), True),
        ("garbage", (event({"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 2}}),), True),
        ("garbage", (event(USAGE), event(b"[DONE]")), True),  # usage reports tokens, but no output arrived
        ("in_stream", (event(delta("x")), event({"error": {"message": "out of luck"}})), True),
    ],
)
def test_a_malformed_response_has_no_tokens(error: str, events: tuple[bytes, ...], end: bool) -> None:
    found = answer(*events, end=end)
    assert found.error == error, found.detail
    assert found.output_tokens is None and not found.arrivals and not found.text


def test_a_model_that_ends_at_once_has_one_token_when_it_says_so() -> None:
    one = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    found = answer(event(delta("", "stop")), event(one), event(b"[DONE]"))
    assert found.error is None and found.arrivals == [1.0] and found.output_tokens == 1
    assert answer(event(delta("", "stop")), event(USAGE)).error == "garbage"  # two tokens cannot both be the end


def test_output_without_tokens_in_usage_is_garbage() -> None:
    nothing = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 0}}
    assert answer(event(delta("x", "stop")), event(nothing)).error == "garbage"


def test_a_rejection_has_the_servers_message() -> None:
    body = b'{"error":{"message":"too many requests"}}'
    raw = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    found = parse_response(parse_head(raw), [raw], [1.0])
    assert (found.status, found.error, found.detail) == (429, "status", "429: too many requests")


def test_an_answer_that_does_not_stream_is_garbage() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    found = parse_response(parse_head(raw), [raw], [1.0])
    assert found.error == "garbage" and "application/json" in found.detail


def test_no_response_is_a_closed_connection() -> None:
    assert parse_response(None, [], []).error == "closed"
