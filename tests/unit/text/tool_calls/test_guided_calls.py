"""Schemas for guided calls, and their parsers."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from enginebay.text.output_events import AnswerText, ToolCallArguments, ToolCallStart
from enginebay.text.tool_calls import (
    CallOrAnswerParser,
    build_call_or_answer_schema,
    build_calls_schema,
    create_guided_parser,
)
from tests.unit.text.tool_calls.parser_reading import ParsedAnswer, make_tool, parse_pieces

WEATHER = make_tool("get_weather", city={"type": "string"})
TIME = {"type": "function", "function": {"name": "get_time"}}
TREE = {
    "type": "function",
    "function": {
        "name": "save_tree",
        "parameters": {
            "properties": {
                "root": {"$ref": "#/$defs/Node"},
                "$ref": {"type": "string"},
                "kind": {"enum": ["#", {"$ref": "#"}]},
            },
            "required": ["root"],
            "$defs": {
                "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "id": {"type": "integer"}}}
            },
        },
    },
}
ALL: list[dict[str, Any]] = [WEATHER, TIME, TREE]


def fits(value: Any, schema: dict[str, Any]) -> bool:
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    return bool(validator.is_valid(value))


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def test_required_takes_calls_of_the_tools_and_nothing_else() -> None:
    schema = build_calls_schema(ALL, None, parallel=True)
    assert fits([call("get_weather", city="Rome"), call("get_time")], schema)
    for wrong in (
        [],
        [call("unknown")],
        [call("get_weather", city=1)],
        [call("get_time", x=1)],
        call("get_time"),
        [{}],
    ):
        assert not fits(wrong, schema)


def test_without_parallel_there_is_exactly_one_call() -> None:
    schema = build_calls_schema([WEATHER, TIME], None, parallel=False)
    assert fits([call("get_time")], schema)
    assert not fits([call("get_time"), call("get_time")], schema)
    assert not fits([], schema)


def test_references_inside_a_tool_still_lead_to_its_own_definitions() -> None:
    other = json.loads(json.dumps(TREE).replace("save_tree", "load_tree").replace('"integer"', '"string"'))
    schema = build_calls_schema([TREE, other], None, parallel=True)
    assert fits([call("save_tree", root={"id": 1, "next": {"id": 2}})], schema)
    assert not fits([call("save_tree", root={"id": 1, "next": {"id": "2"}})], schema)
    assert fits([call("load_tree", root={"id": "1"})], schema)
    assert fits([call("save_tree", root={}, kind={"$ref": "#"})], schema), "data that looks like a reference is data"


def test_a_named_tool_is_its_arguments_alone() -> None:
    known = {"additionalProperties": False}
    assert build_calls_schema(ALL, "get_weather", parallel=True) == {**WEATHER["function"]["parameters"], **known}  # type: ignore[dict-item]
    assert fits({}, build_calls_schema(ALL, "get_time", parallel=True))
    assert not fits({"x": 1}, build_calls_schema(ALL, "get_time", parallel=True))
    assert fits({"root": {"next": {}}}, build_calls_schema(ALL, "save_tree", parallel=False))


@pytest.mark.parametrize(
    "more",
    [
        {"additionalProperties": True}, {"additionalProperties": {"type": "string"}}, {"patternProperties": {"^x": {}}},
        {"allOf": [{"properties": {"x": {}}}]}, {"anyOf": [{"properties": {"x": {}}}]}, {"properties": {}},
        {"required": ["city", "x"]}, {"minProperties": 2}, {"dependentSchemas": {"city": {"properties": {"x": {}}}}},
    ],
    ids=str,
)  # fmt: skip
def test_arguments_beyond_those_named_are_left_to_a_schema_that_speaks_of_them(more: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, **more}
    given = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert build_calls_schema([given], "f", parallel=True) == parameters


ANSWER = {
    "type": "object",
    "properties": {"list": {"type": "array", "items": {"$ref": "#/$defs/Item"}}},
    "required": ["list"],
    "additionalProperties": False,
    "$defs": {"Item": {"type": "object"}},
}


def test_a_call_or_an_answer() -> None:
    schema = build_call_or_answer_schema(ALL, ANSWER)
    assert fits({"list": [{}, {"x": 1}]}, schema) and not fits({"list": [1]}, schema) and not fits({}, schema)
    assert fits(call("get_weather", city="Paris"), schema) and not fits(call("get_weather", city=3), schema)
    assert fits(call("save_tree", root={"next": {"id": 1}}), schema) and not fits(
        call("save_tree", root={"id": "x"}), schema
    )
    assert not fits([call("get_weather", city="Paris")], schema) and not fits(call("other"), schema)


@pytest.mark.parametrize("name", ["default", "enum", "const", "examples", "properties"])
@pytest.mark.parametrize("document", [{}, {"$id": "x", "$schema": "https://json-schema.org/draft/2020-12/schema"}])
def test_references_of_an_answer_with_properties_that_look_like_keywords(name: str, document: dict[str, str]) -> None:
    items = {"Item": {"type": "integer"}}
    answer = {**document, "type": "object", "properties": {name: {"$ref": "#/$defs/Item"}}, "$defs": items}
    schema = build_call_or_answer_schema([WEATHER], answer)
    assert fits({name: 1}, schema) and not fits({name: "x"}, schema)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('{"name": "get_weather", "arguments": {"city": "Paris"}}', "", [("get_weather", '{"city": "Paris"}')]),
        ('{"list": [\n{"name": "get_time", "arguments": {}}\n]}\n', None, []),  # what is within an answer is none
        ('\n {"name": "Ann", "arguments": {}}', None, []),
        ('{"name": "get_weather"}', None, []),
        ('{"name": "get_weather", "parameters": {}}', None, []),
        ('[{"name": "get_weather", "arguments": {}}]', None, []),
        ('{"arguments": {"a": 1}, "name": "get_time"}\n', "", [("get_time", '{"a": 1}')]),
        ('{"name": "get_time", "arguments": {}} {}', "{}", [("get_time", "{}")]),
        ('{"name": "get_time", "arguments": {"a', "", [("get_time", '{"a')]),
        ("[]", None, []),
        ('{"na', None, []),
        ("", "", []),
    ],
)
def test_which_of_the_two_it_is(text: str, content: str | None, calls: list[tuple[str, str]], size: int) -> None:
    found = parse_pieces(CallOrAnswerParser(ALL), [text[at : at + size] for at in range(0, len(text), size)])
    assert found == ParsedAnswer(text if content is None else content, calls)


def test_the_request_is_not_changed() -> None:
    before = json.dumps(ALL)
    build_calls_schema(ALL, None, parallel=True)["items"]["anyOf"][2]["properties"].clear()
    build_calls_schema(ALL, "get_weather", parallel=True)["type"] = "array"
    assert json.dumps(ALL) == before


def test_required_output_is_parsed() -> None:
    output = json.dumps([call("get_weather", city="Rome"), call("get_time")])
    expected = ParsedAnswer("", [("get_weather", '{"city": "Rome"}'), ("get_time", "{}")])
    assert parse_pieces(create_guided_parser(ALL, None), [output]) == expected
    assert parse_pieces(create_guided_parser(ALL, None), output) == expected


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('{"city": "a } b"}', ParsedAnswer("", [("get_weather", '{"city": "a } b"}')])),
        (' \n{"city": "Rome"}\n\n', ParsedAnswer("", [("get_weather", '{"city": "Rome"}')])),
        ('{"city": "Ro', ParsedAnswer("", [("get_weather", '{"city": "Ro')])),
        ('{"city": "Rome"} and more', ParsedAnswer("and more", [("get_weather", '{"city": "Rome"}')])),
        (" I cannot { do } that ", ParsedAnswer(" I cannot { do } that ")),
        ("  ", ParsedAnswer("  ")),
        ("", ParsedAnswer()),
    ],
)
def test_named_output_is_parsed(output: str, expected: ParsedAnswer) -> None:
    assert parse_pieces(create_guided_parser(ALL, "get_weather"), [output]) == expected
    assert parse_pieces(create_guided_parser(ALL, "get_weather"), output) == expected


def test_named_output_streams() -> None:
    parser = create_guided_parser(ALL, "get_weather")
    assert parser.feed(" ") == []
    assert parser.feed("{") == [ToolCallStart(0, "get_weather"), ToolCallArguments(0, "{")]
    assert parser.feed('"city": "Ro') == [ToolCallArguments(0, '"city": "Ro')]
    assert parser.feed('me"} !') == [ToolCallArguments(0, 'me"}'), AnswerText("!")]
