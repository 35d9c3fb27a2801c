"""What the streaming encoders write as bytes fits the structs that the OpenAPI document shows, for every kind of chunk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from enginebay.contract import Sampling, TokenLogprobs
from enginebay.contract.engine_messages import Energy, Usage
from enginebay.errors import EngineFailed
from enginebay.server.api.openai import response_objects as objects
from enginebay.server.api.openai.encoders.chat_encoder import ChatEncoder
from enginebay.server.api.openai.encoders.completion_encoder import CompletionEncoder
from enginebay.server.api.openai.encoders.responses_encoder import ResponseEncoder, ResponseEventEncoder
from enginebay.server.api.openai.encoders.responses_output import ResponseOutput
from enginebay.server.api.openai.responses import build_echoed_fields
from enginebay.server.api.openai.schemas import ResponsesBody
from enginebay.server.encoding.choice_state import ChoiceState, ResponseTiming
from enginebay.text.output_events import AnswerText, ReasoningText, ToolCallArguments, ToolCallStart
from enginebay.text.reasoning import REASONING_FORMATS

LOGPROBS = (TokenLogprobs(65, -0.5, ((65, -0.5), (300, float("-inf")))),)
USAGE, TIMING = Usage(5, 3, 2), ResponseTiming(0.1, 0.2, 0.3)
ENERGIES = [None, Energy(joules=1.5, idle_w=70.0), Energy(absent="no meter")]
COMMON: dict[str, Any] = {
    "id": 'c"1', "created": 1_700_000_000, "model": "mé", "fingerprint": "fp",
    "token_bytes": lambda number: bytes([number]) if number < 256 else b"",
}  # fmt: skip


def check(data: bytes, struct: Any) -> Any:
    """Check that every field fits the struct, and that the struct has every field."""
    assert msgspec.to_builtins(msgspec.convert(json.loads(data), struct)) == json.loads(data)
    return msgspec.json.decode(data, type=struct)


def check_stream(stream: bytes, struct: Any) -> list[Any]:
    blocks = stream.split(b"\n\n")
    assert blocks.pop() == b""
    return [check(block.removeprefix(b"data: "), struct) for block in blocks if block != b"data: [DONE]"]


@pytest.mark.parametrize("with_usage", [False, True])
@pytest.mark.parametrize("with_logprobs", [False, True])
def test_chat_chunks(with_usage: bool, with_logprobs: bool) -> None:
    encoder = ChatEncoder(**COMMON, choices=2, include_usage=with_usage, with_logprobs=with_logprobs)
    choice = ChoiceState(1)
    before, after = encoder.build_text_envelope(1)
    events = [ReasoningText("hm"), ToolCallStart(0, "f"), ToolCallArguments(0, '{"a'), AnswerText("text")]
    stream = [
        encoder.encode_opening(),
        before + b'"He\\n"' + after,
        encoder.encode_text(0, "A", LOGPROBS),
        *(encoder.encode_tool_event(choice, event, lambda: "call_0") for event in events),
        encoder.encode_finish(1, "tool_calls"),
    ]
    chunks = check_stream(b"".join(stream), objects.ChatCompletionChunkObject)
    assert len(chunks) == 2 + 2 + 4 + 1
    assert (chunks[3].choices[0].logprobs is not None) is with_logprobs
    assert all((chunk.usage is None) is with_usage for chunk in chunks)


@pytest.mark.parametrize("energy", ENERGIES)
@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize(
    ("kind", "fields", "struct"),
    [
        (ChatEncoder, {"choices": 1}, objects.ChatCompletionChunkObject),
        (CompletionEncoder, {"echoes": [""]}, objects.CompletionObject),
    ],
)
def test_the_last_chunk(kind: Any, fields: dict[str, Any], struct: Any, extended: bool, energy: Energy | None) -> None:
    options = {"include_timing": extended, "include_energy": extended}
    encoder = kind(**COMMON, **fields, **options, with_logprobs=False, include_usage=True)
    (thoughtful,) = check_stream(encoder.encode_closing(USAGE, TIMING, energy, 2), struct)
    assert thoughtful.usage.completion_tokens_details.reasoning_tokens == 2
    (chunk,) = check_stream(encoder.encode_closing(USAGE, TIMING, energy), struct)
    assert chunk.usage.completion_tokens_details is msgspec.UNSET
    assert chunk.choices == [] and chunk.usage.total_tokens == 8
    assert (chunk.usage.enginebay is not msgspec.UNSET) is extended


@pytest.mark.parametrize("with_usage", [False, True])
def test_completion_chunks(with_usage: bool) -> None:
    encoder = CompletionEncoder(**COMMON, echoes=["echo", ""], include_usage=with_usage, with_logprobs=True)
    before, after = encoder.build_text_envelope(1)
    stream = [
        encoder.encode_opening(),
        before + b'"He"' + after,
        encoder.encode_text(0, "A", LOGPROBS),
        encoder.encode_finish(0, "length"),
    ]
    assert len(check_stream(b"".join(stream), objects.CompletionObject)) == 4


@pytest.mark.parametrize("energy", ENERGIES)
def test_bodies(energy: Energy | None) -> None:
    choice = ChoiceState(0, texts=["hi"], logprobs=list(LOGPROBS), finish_reason="stop")
    called = ChoiceState(0, REASONING_FORMATS["think"].create_parser(None), finish_reason="tool_calls")
    called.append_event(ReasoningText("hm"), "")
    called.append_event(ToolCallStart(0, "f"), "call_0")
    options = {"include_usage": False, "include_energy": True, "with_logprobs": True}
    chat = ChatEncoder(**COMMON, **options, choices=1)
    body = check(chat.encode_body([choice, called], USAGE, energy), objects.ChatCompletionObject)
    assert [one.message.content for one in body.choices] == ["hi", None]
    assert [one.message.reasoning for one in body.choices] == [msgspec.UNSET, "hm"]
    assert body.usage.completion_tokens_details.reasoning_tokens == 0
    completion = CompletionEncoder(**COMMON, **options, echoes=["echo"])
    check(completion.encode_body([choice], USAGE, energy), objects.CompletionObject)


def test_responses_and_their_events() -> None:
    numbers: Iterator[int] = iter(range(9))
    next_id: Callable[[], str] = lambda: f"call_{next(numbers)}"  # noqa: E731
    body = ResponsesBody(model="m", input="hi", tools=[{"type": "function", "name": "f"}])
    encoder = ResponseEncoder("resp_1", 1_700_000_000, "m", build_echoed_fields(body, Sampling()), include_energy=True)

    def encode(failed: bool, reason: str) -> list[dict[str, Any]]:
        output = ResponseOutput("resp_1", next_id, COMMON["token_bytes"], encrypts_reasoning=failed)
        events = ResponseEventEncoder(encoder, output)
        stream = events.encode_opening() + events.encode_event(ReasoningText("hm")) + events.encode_texts(["a", "b"])
        stream += events.encode_event(AnswerText("c"), LOGPROBS)
        stream += events.encode_event(ToolCallStart(0, "f")) + events.encode_event(ToolCallArguments(0, "{}"))
        stream += events.encode_failure(EngineFailed("x")) if failed else events.encode_closing(USAGE, reason)
        return [json.loads(block.partition(b"\ndata: ")[2]) for block in stream.split(b"\n\n")[:-1]]

    seen = set()
    for event in [*encode(False, "stop"), *encode(False, "length"), *encode(True, "")]:
        msgspec.convert(event, objects.ResponseEventObject)
        seen.add(event["type"])
        for name, struct in (
            ("response", objects.ResponseObject),
            ("item", objects.ItemObject),
            ("part", objects.OutputTextObject | objects.ReasoningTextObject),
            ("logprobs", list[objects.LogprobEntryObject]),
        ):
            if name in event:
                check(json.dumps(event[name]).encode(), struct)
    assert len(seen) == 15


def test_token_ids() -> None:
    options: dict[str, Any] = {"include_usage": False, "with_logprobs": False}
    ids = [[1, 2], [3]]
    chat = ChatEncoder(**COMMON, **options, choices=2, token_ids=ids, prompt_ids=[(7, 8), (7, 8)])
    choices = [ChoiceState(index, texts=["hi"], finish_reason="stop", token_ids=list(ids[index])) for index in (0, 1)]
    body = check(chat.encode_body(choices, USAGE), objects.ChatCompletionObject)
    assert body.prompt_token_ids == [7, 8] and [choice.token_ids for choice in body.choices] == ids
    ids[:] = [[], []]
    stream = [chat.encode_opening()]
    ids[1].extend((5, 6))
    stream += [chat.encode_tool_event(choices[1], ReasoningText("hm"), lambda: ""), chat.encode_finish(1, "stop")]
    chunks = check_stream(b"".join(stream), objects.ChatCompletionChunkObject)
    assert [chunk.prompt_token_ids for chunk in chunks[:2]] == [[7, 8]] * 2
    assert [chunk.choices[0].token_ids for chunk in chunks[2:]] == [[5, 6], msgspec.UNSET]
    completion = CompletionEncoder(**COMMON, **options, echoes=["", "echo"], token_ids=ids, prompt_ids=[(7,), (8,)])
    opening = check_stream(completion.encode_opening(), objects.CompletionObject)
    assert [chunk.choices[0].prompt_token_ids for chunk in opening] == [[7], [8]]
    body = check(completion.encode_body(choices, USAGE), objects.CompletionObject)
    assert [(choice.prompt_token_ids, choice.token_ids) for choice in body.choices] == [([7], [1, 2]), ([8], [3])]
