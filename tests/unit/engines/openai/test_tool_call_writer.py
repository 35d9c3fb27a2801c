"""Tool calls as text, read back by the server's parser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from enginebay.engines.openai.http_response import MalformedResponse
from enginebay.engines.openai.tool_call_writer import ToolCallWriter
from enginebay.text.output_events import AnswerText, ToolCallArguments, ToolCallStart
from enginebay.text.tool_calls.formats import hermes

A, B = '{"city": "Paris </tool_call> {", "n": [1, {"x": null}]}', '{"q": "a \\" b\\\\"}'


def _read_back(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Text and calls, as a client would get them; fed one character at a time."""
    parser = hermes.create_parser([])
    found = [event for char in text for event in parser.feed(char)] + parser.end()
    said = "".join(event.text for event in found if isinstance(event, AnswerText))
    names = [event.name for event in found if isinstance(event, ToolCallStart)]
    arguments = [
        "".join(one.fragment for one in found if isinstance(one, ToolCallArguments) and one.index == place)
        for place in range(len(names))
    ]
    return said, list(zip(names, arguments, strict=True))


def _delta(index: int | None, arguments: str = "", name: str | None = None, id_: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"function": {"arguments": arguments, **({"name": name} if name else {})}}
    return {**found, **({} if index is None else {"index": index}), **({"id": id_} if id_ else {})}


def _written(*deltas: dict[str, Any]) -> str:
    writer = ToolCallWriter()
    return "".join(writer.feed([one]) for one in deltas) + writer.end()


def test_a_call_is_written_while_it_streams() -> None:
    writer = ToolCallWriter()
    assert writer.feed([_delta(0, name="get", id_="c1")]) == '<tool_call>\n{"name": "get", "arguments": '
    assert writer.feed([_delta(0, '{"a"')]) == '{"a"'
    assert writer.feed([_delta(0, ": 1}")]) == ": 1}"
    assert writer.end() == "}\n</tool_call>"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_one_after_another(size: int) -> None:
    deltas = []
    for index, (name, arguments) in enumerate([("first", A), ('we"ird', B)]):
        deltas.append(_delta(index, name=name, id_=f"c{index}"))
        deltas += [_delta(index, arguments[at : at + size]) for at in range(0, len(arguments), size)]
    assert _read_back(_written(*deltas)) == ("", [("first", A), ('we"ird', B)])


def test_interleaved_calls_are_put_in_order() -> None:
    deltas = [_delta(0, name="first", id_="a"), _delta(1, name="second", id_="b")]
    for at in range(max(len(A), len(B))):
        deltas += [_delta(0, A[at : at + 1]), _delta(1, B[at : at + 1])]
    assert _read_back(_written(*deltas)) == ("", [("first", A), ("second", B)])


def test_the_second_call_streams_as_soon_as_the_first_is_whole() -> None:
    writer = ToolCallWriter()
    writer.feed([_delta(0, "{}", "one")])
    assert writer.feed([_delta(1, '{"a"', "two")]) == '}\n</tool_call>\n<tool_call>\n{"name": "two", "arguments": {"a"'


@pytest.mark.parametrize("arguments", ["", "{}", "null"])
def test_a_call_without_arguments(arguments: str) -> None:
    assert _read_back(_written(_delta(0, arguments, "now"))) == ("", [("now", "{}")])


def test_calls_that_share_an_index_are_distinguished_by_id() -> None:
    text = _written(_delta(0, A, "first", "a"), _delta(0, B, "second", "b"))
    assert _read_back(text) == ("", [("first", A), ("second", B)])


def test_calls_without_an_index() -> None:
    text = _written(_delta(None, A[:5], "first", "a"), _delta(None, A[5:]), _delta(None, B, "second"))
    assert _read_back(text) == ("", [("first", A), ("second", B)])


def test_arguments_that_come_parsed() -> None:
    delta = {"index": 0, "function": {"name": "f", "arguments": {"a": "é"}}}
    assert _read_back(_written(delta)) == ("", [("f", '{"a": "é"}')])


def test_a_call_that_is_cut_off_does_not_look_whole() -> None:
    _, [(name, arguments)] = _read_back(_written(_delta(0, '{"a": 1', "f")))
    assert (name, arguments) == ("f", '{"a": 1')
    with pytest.raises(ValueError):
        json.loads(arguments)


def test_a_name_that_is_repeated_is_written_once() -> None:
    text = _written(_delta(0, '{"a"', "f", "x"), _delta(0, ": 1}", "f", "x"))
    assert _read_back(text) == ("", [("f", '{"a": 1}')])


@pytest.mark.parametrize(
    "deltas",
    [
        "no list",
        ["not an object"],
        [{"index": 0, "function": {"name": 5}}],
        [{"index": 0, "function": {"arguments": 5}}],
        [_delta(0, "{} {}", "f")],
        [_delta(0, "{}", "f"), _delta(0, "more")],
        [_delta(place, "{", "f") for place in range(2000)],
    ],
)
def test_nonsense_is_malformed(deltas: Any) -> None:
    with pytest.raises(MalformedResponse):
        ToolCallWriter().feed(deltas)


def test_oversized_calls_are_malformed() -> None:
    writer = ToolCallWriter()
    writer.feed([_delta(0, "{", "first"), _delta(1, "", "second")])
    with pytest.raises(MalformedResponse, match="too many or too large"):
        for _ in range(100):
            writer.feed([_delta(1, "[" + "1," * 65_536)])


def test_a_call_without_a_name_is_malformed() -> None:
    with pytest.raises(MalformedResponse, match="name"):
        _written(_delta(0, "{}"))
