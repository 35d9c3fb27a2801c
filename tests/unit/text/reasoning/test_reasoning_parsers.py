"""The same thoughts, text and calls come out of an output however it is split, for every format and for hostile outputs."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.text.output_events import AnswerText, OutputEvent, ReasoningText, ToolCallArguments, ToolCallStart
from enginebay.text.reasoning import REASONING_FORMATS, ReasoningParser
from enginebay.text.tool_calls import TOOL_CALL_FORMATS
from tests.unit.text.tool_calls.parser_reading import make_tool

FOLDER = Path(__file__).parents[3] / "recordings" / "reasoning"
RECORDINGS: dict[str, Any] = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}
TOOLS = [make_tool("get_weather", city={"type": "string"}), make_tool("get_time")]
Parts = tuple[str, str, list[tuple[str, str]]]


def parse(parser: ReasoningParser, pieces: list[str]) -> Parts:
    reasoning, text = "", ""
    calls: list[tuple[str, str]] = []
    events: list[OutputEvent] = []
    for piece in pieces:
        events += parser.feed(piece)
    for event in (*events, *parser.end()):
        match event:
            case ReasoningText(piece):
                assert piece
                reasoning += piece
            case AnswerText(piece):
                assert piece
                text += piece
            case ToolCallStart(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case ToolCallArguments(index, fragment):
                calls[index] = (calls[index][0], calls[index][1] + fragment)
    return reasoning, text, calls


def make_parser(recording: dict[str, Any]) -> ReasoningParser:
    tool_format = recording.get("tool_format")
    inner = TOOL_CALL_FORMATS[tool_format].create_parser(TOOLS) if tool_format else None
    return REASONING_FORMATS[recording["format"]].create_parser(inner, recording["prompt_end"])


def split_at(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_outputs_at_every_split(name: str) -> None:
    recording = RECORDINGS[name]
    output, wanted = recording["output"], recording["expect"]
    expected = (wanted["reasoning"], wanted["text"], [(call["name"], call["arguments"]) for call in wanted["calls"]])
    assert parse(make_parser(recording), [output]) == expected
    assert parse(make_parser(recording), list(output)) == expected
    for at in range(len(output)):
        assert parse(make_parser(recording), [output[:at], output[at:]]) == expected
    dice = random.Random(name)
    for _ in range(50):
        pieces = split_at(output, [dice.randrange(len(output)) for _ in range(12)])
        assert parse(make_parser(recording), pieces) == expected


def test_every_format_has_a_recording() -> None:
    assert {recording["format"] for recording in RECORDINGS.values()} == set(REASONING_FORMATS)


PIECES = [
    "<think>", "</think>", "<thi", "</", "nk>", "<", ">", " ", "\n", "\n\n", "a", "b c", "[THINK]", "[/THINK]", "<|channel|>",
    "analysis", "final", "commentary", "<|message|>", "<|end|>", "<|start|>", "assistant", "<|call|>", "<|return|>",
    " to=functions.get_time", " to=python", "<|constrain|>json", "{}", '{"city": "x"}', "<response>", "</response>",
    "Here is my thought process:", "Here is my response:", "Here is my ", "<|START_THINKING|>", "<|END_THINKING|>",
    "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|channel>thought", "<channel|>", "<seed:think>", "</seed:think>", "é🙂",
    '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(sorted(REASONING_FORMATS)),
    pieces=st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=12),
    cuts=st.lists(st.integers(min_value=0, max_value=400), max_size=12),
    end=st.sampled_from(["", "<think>\n", "</think>\n\n", "[THINK]", "<|start|>assistant"]),
    tools=st.booleans(),
)
def test_hostile_outputs_at_any_split(name: str, pieces: list[str], cuts: list[int], end: str, tools: bool) -> None:
    output = "".join(pieces)

    def make() -> ReasoningParser:
        inner = TOOL_CALL_FORMATS["hermes"].create_parser(TOOLS) if tools else None
        return REASONING_FORMATS[name].create_parser(inner, end)

    whole = parse(make(), [output])
    assert parse(make(), split_at(output, cuts)) == whole
    assert parse(make(), list(output)) == whole


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60), name=st.sampled_from(sorted(REASONING_FORMATS)))
def test_text_without_tags_is_an_answer_unchanged(name: str, text: str) -> None:
    tags = ("<", "[", "Here", " to=")
    if not any(tag in text for tag in tags):
        assert parse(REASONING_FORMATS[name].create_parser(None), [text]) == ("", text, [])


@settings(max_examples=200, deadline=None)
@given(thought=st.text(max_size=40), answer=st.text(max_size=40))
def test_a_thought_and_an_answer_are_told_apart(thought: str, answer: str) -> None:
    if "</think>" in thought or "<think>" in thought:
        return
    parser = REASONING_FORMATS["think"].create_parser(None)
    space = " \t\r\n"
    assert parse(parser, [f"<think>{thought}</think>{answer}"]) == (thought.strip(space), answer.lstrip(space), [])


def test_text_goes_out_as_soon_as_it_is_certain() -> None:
    parser = REASONING_FORMATS["think"].create_parser(None)
    assert parser.feed("<think>\n") == []
    assert parser.feed("One") == [ReasoningText("One")]
    assert parser.feed(" two") == [ReasoningText(" two")]
    assert parser.feed(".\n</th") == [ReasoningText(".")]
    assert not parser.is_plain
    assert parser.feed("ink>\n\n") == [] and parser.thought_ended
    assert parser.feed("Yes") == [AnswerText("Yes")] and parser.is_plain
    assert parser.feed("  \n") == [AnswerText("  \n")]


def test_tokens_of_the_thought_are_counted_with_its_tags() -> None:
    parser = REASONING_FORMATS["think"].create_parser(None)
    for piece, tokens in (("<", 1), ("think>", 1), ("a b c", 3), ("</think>", 1), ("\n\n", 1), ("Yes", 1)):
        parser.feed(piece, tokens)
    assert parser.reasoning_tokens == 6
    plain = REASONING_FORMATS["think"].create_parser(None)
    for piece in ("<", "b", " no"):
        plain.feed(piece)
    assert plain.reasoning_tokens == 0


def test_long_whitespace_is_no_burden() -> None:
    parser = REASONING_FORMATS["think"].create_parser(None)
    parser.feed("<think>a")
    for _ in range(100_000):
        parser.feed(" ")
    assert parse(parser, ["b"])[0] == " " * 100_000 + "b"


def test_calls_of_a_harmony_answer_are_numbered_together() -> None:
    output = (
        "<|channel|>commentary to=functions.get_time<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>"
        '<tool_call>{"name": "get_weather", "arguments": {"city": "x"}}</tool_call>'
    )
    parser = REASONING_FORMATS["harmony"].create_parser(TOOL_CALL_FORMATS["hermes"].create_parser(TOOLS))
    assert parse(parser, [output])[2] == [("get_time", "{}"), ("get_weather", '{"city": "x"}')]


def test_a_call_without_tools_is_text() -> None:
    output = "<|channel|>commentary to=functions.f<|message|>{}<|call|>"
    assert parse(REASONING_FORMATS["harmony"].create_parser(None), [output]) == ("", "{}", [])
