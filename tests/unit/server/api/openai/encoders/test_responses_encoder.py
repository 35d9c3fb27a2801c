"""The response object and its events, read back with the OpenAI SDK's own types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import to_builtins
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from enginebay.contract import Sampling, TokenLogprobs
from enginebay.contract.engine_messages import Usage
from enginebay.errors import EngineFailed
from enginebay.server.api.openai.encoders.responses_encoder import (
    ResponseEncoder,
    ResponseEventEncoder,
    encode_responses_usage,
)
from enginebay.server.api.openai.encoders.responses_output import OutputParser, ResponseOutput
from enginebay.server.api.openai.responses import build_echoed_fields
from enginebay.server.api.openai.schemas import ResponsesBody
from enginebay.text.output_events import AnswerText, ToolCallArguments, ToolCallStart
from enginebay.text.tool_calls import create_guided_parser

USAGE = Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=2)
TOOLS = [{"type": "function", "name": "f"}]
_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def call_ids() -> Callable[[], str]:
    numbers: Iterator[int] = iter(range(100))
    return lambda: f"call_{next(numbers)}"


def make_output() -> ResponseOutput:
    return ResponseOutput("resp_1", call_ids(), lambda number: bytes([number]) if number < 256 else b"")


def make_encoder() -> ResponseEncoder:
    body = ResponsesBody(model="m", input="hi", tools=TOOLS, tool_choice={"type": "function", "name": "f"})
    return ResponseEncoder("resp_1", 1_700_000_000, "m", build_echoed_fields(body, Sampling(temperature=0.5)))


def parse_stream(stream: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream. Check their framing, their numbers and OpenAI's types."""
    found = []
    for block in stream.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        _EVENT.validate_python(event)
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_finished_response_validates_against_the_sdk() -> None:
    output = make_output()
    output.append_event(AnswerText("Hello"))
    found = Response.model_validate(to_builtins(make_encoder().encode_finished(output, USAGE, "stop")))
    assert (found.status, found.output_text, found.incomplete_details) == ("completed", "Hello", None)
    assert found.temperature == 0.5
    assert found.tools[0].type == "function"
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens, found.usage.total_tokens) == (5, 3, 8)


def test_a_response_that_was_cut_is_incomplete() -> None:
    output = make_output()
    output.append_event(ToolCallStart(0, "f"))
    output.append_event(ToolCallArguments(0, '{"a'))
    found = to_builtins(make_encoder().encode_finished(output, USAGE, "length"))
    assert found["status"] == "incomplete"
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}
    assert found["output"][0]["status"] == "incomplete"


def test_text_and_calls_keep_their_order() -> None:
    output = make_output()
    for event in (
        AnswerText("a"),
        AnswerText("b"),
        ToolCallStart(0, "f"),
        ToolCallArguments(0, "{"),
        ToolCallArguments(0, "}"),
        AnswerText("c"),
    ):
        output.append_event(event)
    message, function, last = to_builtins(output.encode_items("incomplete"))
    assert (message["content"][0]["text"], message["status"]) == ("ab", "completed")
    assert (function["call_id"], function["name"], function["arguments"]) == ("call_0", "f", "{}")
    assert (last["content"][0]["text"], last["status"]) == ("c", "incomplete")
    assert len({message["id"], function["id"], last["id"]}) == 3


def test_no_output_is_an_empty_message() -> None:
    assert to_builtins(make_output().encode_items())[0]["content"][0]["text"] == ""


def test_usage() -> None:
    assert encode_responses_usage(USAGE).input_tokens_details.cached_tokens == 2


def test_events_of_plain_text() -> None:
    output = make_output()
    events = ResponseEventEncoder(make_encoder(), output)
    body = events.encode_texts(["He", 'l"lo']) + events.encode_texts(["%d"])
    found = parse_stream(events.encode_opening() + body + events.encode_closing(USAGE, "stop"))
    assert kinds(found) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [event["delta"] for event in found if "delta" in event] == ["He", 'l"lo', "%d"]
    assert found[-4]["text"] == 'Hel"lo%d'
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == 'Hel"lo%d'
    assert found[-1]["response"]["output"][0]["id"] == found[2]["item"]["id"]


def test_events_of_calls() -> None:
    events = ResponseEventEncoder(make_encoder(), make_output())
    parsed_events = (
        AnswerText("wait"),
        ToolCallStart(0, "f"),
        ToolCallArguments(0, "{"),
        ToolCallArguments(0, "}"),
        ToolCallStart(1, "f"),
    )
    body = b"".join(events.encode_event(event) for event in parsed_events)
    found = parse_stream(events.encode_opening() + body + events.encode_closing(USAGE, "stop"))
    assert kinds(found)[2:] == [
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    indexes = [event["output_index"] for event in found if "output_index" in event]
    assert indexes == sorted(indexes)
    assert [item["type"] for item in found[-1]["response"]["output"]] == ["message", "function_call", "function_call"]


def test_events_of_an_answer_without_text() -> None:
    events = ResponseEventEncoder(make_encoder(), make_output())
    found = parse_stream(events.encode_opening() + events.encode_closing(USAGE, "length"))
    assert kinds(found)[-2:] == ["output_item.done", "incomplete"]
    assert found[-2]["item"]["status"] == "incomplete"


def test_a_failure_in_the_middle() -> None:
    events = ResponseEventEncoder(make_encoder(), make_output())
    stream = events.encode_texts(["Hel"]) + events.encode_failure(EngineFailed("/secret/path broke"))
    found = parse_stream(events.encode_opening() + stream)[-1]
    assert found["type"] == "response.failed"
    assert found["response"]["error"]["code"] == "server_error"
    assert "/secret" not in json.dumps(found)
    assert found["response"]["output"][0]["status"] == "incomplete"


def test_log_probabilities_have_bytes_even_for_unknown_tokens() -> None:
    token = TokenLogprobs(65, -0.5, ((65, -0.5), (300, -2.0)))
    events = ResponseEventEncoder(make_encoder(), make_output())
    found = parse_stream(
        events.encode_opening() + events.encode_event(AnswerText("A"), (token,)) + events.encode_closing(USAGE, "stop")
    )
    logprobs = found[4]["logprobs"]
    assert logprobs[0]["bytes"] == [65]
    assert [one["bytes"] for one in logprobs[0]["top_logprobs"]] == [[65], []]
    assert found[-1]["response"]["output"][0]["content"][0]["logprobs"] == logprobs


def test_log_probabilities_belong_to_text_alone() -> None:
    def token(text: str) -> TokenLogprobs:
        return TokenLogprobs(ord(text), -1.0)

    parser = OutputParser(
        create_guided_parser([{"type": "function", "function": {"name": "f"}}], "f"), lambda text, _: text
    )
    read = [pair for char in '{"a":1}!' for pair in parser.feed(char, (ord(char),), (token(char),))]
    read += parser.end()
    texts = [(event.text, known) for event, known in read if isinstance(event, AnswerText)]
    assert texts == [("!", (token("!"),))]
    assert all(not known for event, known in read if not isinstance(event, AnswerText))


def test_markers_count_only_with_tools() -> None:
    assert OutputParser(None, lambda text, _: "<call>" + text).feed("x", (7,), ()) == [(AnswerText("x"), ())]
