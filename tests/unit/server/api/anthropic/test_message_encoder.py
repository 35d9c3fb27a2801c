"""The message object and its events, read back with the Anthropic SDK's own types."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from enginebay.contract.engine_messages import Usage
from enginebay.server.api.anthropic.message_encoder import (
    BlockSequence,
    MessageEncoder,
    MessageEnd,
    MessageEventEncoder,
    collect_blocks,
    encode_message_usage,
    find_end,
)
from enginebay.server.api.anthropic.message_objects import (
    MessageEventObject,
    MessageObject,
    TextBlockObject,
    ThinkingBlockObject,
    ToolUseBlockObject,
)
from enginebay.text.output_events import AnswerText, OutputEvent, ReasoningText, ToolCallArguments, ToolCallStart

USAGE = Usage(prompt_tokens=50, completion_tokens=3, cached_tokens=32)
END = MessageEnd("end_turn")
_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_BLOCKS = {"text": TextBlockObject, "thinking": ThinkingBlockObject, "tool_use": ToolUseBlockObject}
AGENT: list[OutputEvent] = [
    ReasoningText("Let me "), ReasoningText("think."), AnswerText("\n\n"), AnswerText("I'll look: "), AnswerText("\u2028"),
    ToolCallStart(0, "get_time"), ToolCallArguments(0, '{"city": '), ToolCallArguments(0, '"Århus"}'),
    AnswerText("\n"), ToolCallStart(1, "get_date"), ToolCallArguments(1, "{}"),
]  # fmt: skip


def make_blocks() -> BlockSequence:
    numbers = itertools.count(1)
    return BlockSequence(lambda: f"call_{next(numbers)}")


def make_encoder(*, hides_thinking: bool = False) -> MessageEncoder:
    return MessageEncoder("msg_1", 'mo"del', hides_thinking)


def encode_whole(
    events: Sequence[OutputEvent], *, hides_thinking: bool = False, end: MessageEnd = END
) -> dict[str, Any]:
    """Return the JSON body. Check it against the SDK's type and our own."""
    body = make_encoder(hides_thinking=hides_thinking).encode_message(
        collect_blocks(events, make_blocks()), encode_message_usage(USAGE), end
    )
    found: dict[str, Any] = json.loads(body)
    Message.model_validate(found)
    assert msgspec.to_builtins(msgspec.convert(found, MessageObject)) == found
    for block in found["content"]:
        assert msgspec.to_builtins(msgspec.convert(block, _BLOCKS[block["type"]])) == block
    return found


def parse_stream(stream: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream. Check their framing and their types."""
    found = []
    for block in stream.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        msgspec.convert(event, MessageEventObject)
        if event["type"] != "ping":
            _EVENT.validate_python(event)
        found.append(event)
    return found


def encode_stream(
    events: Sequence[OutputEvent], *, hides_thinking: bool = False, end: MessageEnd = END
) -> list[dict[str, Any]]:
    encoder = MessageEventEncoder(make_encoder(hides_thinking=hides_thinking), make_blocks(), 50)
    encoded = [encoder.encode_event(event) for event in events]
    return parse_stream(
        b"".join([encoder.encode_opening(), *encoded, encoder.encode_closing(encode_message_usage(USAGE), end)])
    )


def accumulate(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that the SDK makes of a stream."""
    message: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        if event["type"] != "ping":
            parsed = _EVENT.validate_python(event)
            message = accumulate_event(event=parsed, current_snapshot=message, json_bufs=buffers)
    found: dict[str, Any] = message.to_dict(mode="json")
    return found


def test_a_text() -> None:
    found = encode_whole([AnswerText("Hello")])
    assert found["content"] == [{"type": "text", "text": "Hello", "citations": None}]
    assert (found["stop_reason"], found["stop_sequence"], found["role"], found["model"]) == (
        "end_turn", None, "assistant", 'mo"del'
    )  # fmt: skip


def test_the_usage_excludes_cached_tokens_from_the_input() -> None:
    found = msgspec.to_builtins(encode_message_usage(USAGE))
    assert found == {
        "input_tokens": 18, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 32, "output_tokens": 3
    }  # fmt: skip


def test_the_tokens_of_a_thought() -> None:
    found = msgspec.to_builtins(encode_message_usage(USAGE, 2))
    assert found["output_tokens_details"] == {"thinking_tokens": 2}


def test_thinking_text_and_calls_are_blocks_in_order() -> None:
    found = encode_whole(AGENT, end=MessageEnd("tool_use"))
    assert [block["type"] for block in found["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    thinking, text, first, second = found["content"]
    assert thinking["thinking"] == "Let me think." and thinking["signature"]
    assert text["text"] == "\n\nI'll look: \u2028"
    assert (first["id"], first["name"], first["input"]) == ("toolu_1", "get_time", {"city": "Århus"})
    assert (second["id"], second["input"]) == ("toolu_2", {})


def test_a_stream_is_the_same_message() -> None:
    end = MessageEnd("stop_sequence", "END")
    streamed = accumulate(encode_stream(AGENT, end=end))
    whole = Message.model_validate(encode_whole(AGENT, end=end)).to_dict(mode="json")
    assert streamed == whole


def test_the_order_of_the_events() -> None:
    events = encode_stream(AGENT, end=MessageEnd("tool_use"))
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    opened: list[int] = []
    for event in events:
        if event["type"] == "content_block_start":
            opened.append(event["index"])
        elif event["type"] in ("content_block_delta", "content_block_stop"):
            assert event["index"] == opened[-1]
    assert opened == [0, 1, 2, 3]
    assert events[0]["message"]["usage"]["input_tokens"] == 50
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["cache_read_input_tokens"] == 32


def test_texts_of_a_flush_are_one_event_each() -> None:
    encoder = MessageEventEncoder(make_encoder(), make_blocks(), 5)
    stream = (
        encoder.encode_texts(["\n"]) + encoder.encode_texts(["He", "ll"]) + encoder.encode_texts(["o", '"\n', "世"])
    )
    events = parse_stream(encoder.encode_opening() + stream + encoder.encode_closing(encode_message_usage(USAGE), END))
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == ["\nHe", "ll", "o", '"\n', "世"]


@pytest.mark.parametrize("events", [[], [AnswerText("")], [AnswerText("\n"), AnswerText(" ")]])
def test_no_output_is_no_block(events: list[OutputEvent]) -> None:
    assert encode_whole(events)["content"] == []
    assert [event["type"] for event in encode_stream(events)] == [
        "message_start",
        "ping",
        "message_delta",
        "message_stop",
    ]


def test_thinking_that_is_not_shown() -> None:
    events: list[OutputEvent] = [ReasoningText("Grüß "), ReasoningText("Gott"), AnswerText("Hi")]
    whole = encode_whole(events, hides_thinking=True)
    assert whole["content"][0]["thinking"] == "" and "Gott" not in json.dumps(whole)
    streamed = accumulate(encode_stream(events, hides_thinking=True))
    assert streamed["content"] == Message.model_validate(whole).to_dict(mode="json")["content"]


def test_arguments_that_were_cut() -> None:
    events: list[OutputEvent] = [ToolCallStart(0, "f"), ToolCallArguments(0, '{"a": [1, ')]
    assert encode_whole(events, end=MessageEnd("max_tokens"))["content"][0]["input"] == {}
    deltas = [event for event in encode_stream(events) if event["type"] == "content_block_delta"]
    assert deltas[0]["delta"] == {"type": "input_json_delta", "partial_json": '{"a": [1, '}


@pytest.mark.parametrize(
    ("reason", "matched", "calls", "expected"),
    [
        ("stop", None, False, MessageEnd("end_turn")),
        ("stop", "END", False, MessageEnd("stop_sequence", "END")),
        ("stop", "other", False, MessageEnd("end_turn")),
        ("stop", 7, False, MessageEnd("end_turn")),
        ("stop", None, True, MessageEnd("tool_use")),
        ("length", None, True, MessageEnd("max_tokens")),
        ("length", None, False, MessageEnd("max_tokens")),
    ],
)
def test_why_a_message_ended(reason: str, matched: Any, calls: bool, expected: MessageEnd) -> None:
    assert find_end(reason, matched, ["END"], calls) == expected


TEXTS = st.text(alphabet=st.sampled_from('a \n"é世\u2028'), max_size=4)
PIECES = st.lists(st.tuples(st.sampled_from(["answer", "reasoning", "call"]), TEXTS), max_size=8)


@given(PIECES, st.booleans())
def test_streams_and_json_agree(pieces: list[tuple[str, str]], hides_thinking: bool) -> None:
    events: list[OutputEvent] = []
    calls = 0
    for kind, text in pieces:
        if kind == "call":
            events += [ToolCallStart(calls, "f"), ToolCallArguments(calls, json.dumps({"a": text}))]
            calls += 1
        else:
            events.append(AnswerText(text) if kind == "answer" else ReasoningText(text))
    whole = Message.model_validate(encode_whole(events, hides_thinking=hides_thinking)).to_dict(mode="json")
    assert accumulate(encode_stream(events, hides_thinking=hides_thinking)) == whole
