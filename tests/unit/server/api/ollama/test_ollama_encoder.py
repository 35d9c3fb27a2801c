"""Lines and objects of the Ollama API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from enginebay.contract import Delta, FinishReason, GenerateRequest, Sampling, TokenLogprobs
from enginebay.contract.engine_messages import Done, Timing, Usage
from enginebay.errors import EngineFailed
from enginebay.server.api.ollama.ollama_encoder import OllamaEncoder, OllamaJsonWriter, OllamaStreamWriter
from enginebay.server.encoding.choice_state import ChoiceState
from enginebay.text.output_events import (
    AnswerText,
    OutputEvent,
    OutputEventParser,
    ReasoningText,
    ToolCallArguments,
    ToolCallStart,
)
from tests.unit.server.encoding.test_response_writer import Connection, Worker, make_session

DONE = Done(Usage(3, 2, 1), Timing(0.1, 0.3))
CALL = (ToolCallStart(0, "f"), ToolCallArguments(0, '{"city":\n'), ToolCallArguments(0, ' "Århus"}'))


class ScriptedParser:
    """Returns these events, one for each piece of text, and the rest at the end."""

    def __init__(self, *events: OutputEvent) -> None:
        self._events = list(events)

    def feed(self, text: str) -> list[OutputEvent]:
        return [self._events.pop(0)] if self._events else []

    def end(self) -> list[OutputEvent]:
        return self._events


def make_encoder(endpoint: Literal["chat", "generate"] = "chat", logprobs: bool = False) -> OllamaEncoder:
    return OllamaEncoder(
        endpoint=endpoint, model='m"1', created_at="2026-01-01T00:00:00.000000Z", received_at=0.0,
        token_bytes=lambda token: bytes((token,)), with_logprobs=logprobs,
    )  # fmt: skip


def start(
    stream: bool,
    parser: OutputEventParser | None = None,
    endpoint: Literal["chat", "generate"] = "chat",
    logprobs: bool = False,
) -> tuple[Any, Connection]:
    connection, choice, encoder = Connection(), ChoiceState(0, parser), make_encoder(endpoint, logprobs)
    exchange: Any = connection
    writer: Any = (
        OllamaStreamWriter(exchange, make_session(), [choice], encoder)
        if stream
        else OllamaJsonWriter(exchange, make_session(), choice, encoder)
    )
    writer.submit(Worker(), [GenerateRequest(token_ids=(1,), sampling=Sampling())])
    return writer, connection


def run(writer: Any, pieces: Sequence[str], reason: FinishReason = FinishReason.STOP) -> None:
    for number, piece in enumerate(pieces):
        writer.on_token(piece, number + 1)
        writer.on_flush()
    writer.on_delta(Delta("", (), finish_reason=reason))
    writer.on_done(DONE)


def read_lines(connection: Connection) -> list[Any]:
    text = b"".join(connection.writes).decode()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]  # as clients split it


@pytest.mark.parametrize("endpoint", ["chat", "generate"])
async def test_a_line_per_token_and_a_last_one(endpoint: Literal["chat", "generate"]) -> None:
    writer, connection = start(True, endpoint=endpoint)
    run(writer, ["Hél", "l\no\u2028"])
    *lines, last = read_lines(connection)

    def text(line: Any) -> str:
        return line["message"]["content"] if endpoint == "chat" else line["response"]

    assert [text(line) for line in lines] == ["Hél", "l\no\u2028"] and not any(line["done"] for line in lines)
    assert all("done_reason" not in line and line["model"] == 'm"1' for line in lines)
    assert last["done"] and text(last) == "" and last["done_reason"] == "stop"
    assert (last["prompt_eval_count"], last["eval_count"]) == (3, 2)
    assert (last["prompt_eval_duration"], last["eval_duration"]) == (100_000_000, 200_000_000)
    assert last["total_duration"] > 0 and last["load_duration"] > 0


async def test_tokens_of_one_flush_are_one_write() -> None:
    writer, connection = start(True)
    for piece in "abc":
        writer.on_token(piece, 1)
    writer.on_flush()
    assert len(read_lines(connection)) == 3
    assert len([data for data in connection.writes if data]) == 1


async def test_a_line_of_the_template_is_the_line_of_the_struct() -> None:
    encoder = make_encoder()
    before, after = encoder.build_text_envelope(0)
    assert json.loads(before + b'"x"' + after) == json.loads(encoder.encode_text(0, "x", ()))


@pytest.mark.parametrize("stream", [True, False])
async def test_thoughts_have_a_field_of_their_own(stream: bool) -> None:
    writer, connection = start(stream, ScriptedParser(ReasoningText("hm"), AnswerText("yes")))
    run(writer, ["1", "2"])
    if stream:
        thought, answer, _ = read_lines(connection)
        assert thought["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
        assert answer["message"] == {"role": "assistant", "content": "yes"}
    else:
        message = json.loads(connection.writes[0])["message"]
        assert (message["thinking"], message["content"]) == ("hm", "yes")


async def test_thoughts_of_a_prompt() -> None:
    writer, connection = start(False, ScriptedParser(ReasoningText("hm"), AnswerText("yes")), "generate")
    run(writer, ["1"])
    body = json.loads(connection.writes[0])
    assert (body["thinking"], body["response"]) == ("hm", "yes")


@pytest.mark.parametrize("stream", [True, False])
async def test_calls_are_whole_with_objects_as_arguments(stream: bool) -> None:
    events = (AnswerText("so"), *CALL, ToolCallStart(1, "g"), ToolCallArguments(1, ""))
    writer, connection = start(stream, ScriptedParser(*events))
    run(writer, [str(number) for number in range(len(events))])
    if stream:
        lines = read_lines(connection)
        assert [line["message"]["content"] for line in lines] == ["so", "", "", ""]
        calls = [made for line in lines for made in line["message"].get("tool_calls", ())]
    else:
        lines = [json.loads(connection.writes[0])]
        calls = lines[0]["message"]["tool_calls"]
    assert [made["function"] for made in calls] == [
        {"index": 0, "name": "f", "arguments": {"city": "Århus"}},
        {"index": 1, "name": "g", "arguments": {}},
    ]
    assert calls[0]["id"] and lines[-1]["done_reason"] == "stop"
    assert writer.finish_reason == "tool_calls"  # in the log


async def test_nothing_is_sent_while_a_call_is_incomplete() -> None:
    """So that a failure can still be retried."""
    writer, connection = start(True, ScriptedParser(*CALL))
    for number in range(3):
        writer.on_token("x", number)
        writer.on_flush()
    assert not connection.started and writer.no_output_sent


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("arguments", ['{"city": "Pa', "[1]", '{"a": NaN}', '{"a": "\\ud800"}', "[" * 100_000])
async def test_a_call_that_is_cut_off_is_text(stream: bool, arguments: str) -> None:
    writer, connection = start(stream, ScriptedParser(ToolCallStart(0, "f"), ToolCallArguments(0, arguments)))
    run(writer, ["1", "2"], FinishReason.LENGTH)
    lines = read_lines(connection) if stream else [json.loads(connection.writes[0])]
    assert lines[0]["message"]["content"].endswith(arguments) and "tool_calls" not in lines[0]["message"]
    assert lines[-1]["done_reason"] == "length"


@pytest.mark.parametrize("stream", [True, False])
async def test_logprobs(stream: bool) -> None:
    writer, connection = start(stream, logprobs=True)
    entry = TokenLogprobs(97, -0.5, ((97, -0.5), (98, -1.5)))
    writer.on_delta(Delta("a", (97,), logprobs=(entry,)))
    run(writer, [])
    line = read_lines(connection)[0] if stream else json.loads(connection.writes[0])
    [token] = line["logprobs"]
    assert (token["token"], token["logprob"], token["bytes"]) == ("a", -0.5, [97])
    assert [other["token"] for other in token["top_logprobs"]] == ["a", "b"]


async def test_a_failure_is_a_line() -> None:
    writer, connection = start(True)
    writer.on_token("a", 1)
    writer.on_flush()
    writer.on_error(EngineFailed("secret"))
    line, last = read_lines(connection)
    assert line["message"]["content"] == "a"
    assert isinstance(last["error"], str) and "secret" not in last["error"] and connection.ended


@pytest.mark.parametrize("endpoint", ["chat", "generate"])
def test_a_request_that_only_loads(endpoint: Literal["chat", "generate"]) -> None:
    body = json.loads(make_encoder(endpoint).encode_empty("load"))
    assert (body["done"], body["done_reason"]) == (True, "load")
    assert body["message"]["content"] == "" if endpoint == "chat" else body["response"] == ""
