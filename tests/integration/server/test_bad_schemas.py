"""Bad schemas, regexes and tools: none reaches an engine, and none takes long to be refused."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.integration.server.abused_server import CHAT, HELLO, AbusedServer

HUGE = 10**400


def body_of(**fields: Any) -> dict[str, Any]:
    return {"model": "toy", "messages": HELLO, "max_tokens": 4, **fields}


def with_literal(field: str, literal: str) -> bytes:
    """A body in which this text stands where the field's value would be."""
    return json.dumps(body_of(**{field: "HERE"})).replace('"HERE"', literal).encode()


def nested(depth: int) -> str:
    return '{"type":"object","properties":{"a":' * depth + '{"type":"string"}' + "}}" * depth


@pytest.mark.parametrize("field", ["guided_json", "response_format", "metadata"])
def test_a_schema_a_thousand_deep(battered: AbusedServer, field: str) -> None:
    for depth in (490, 1000, 5000):  # around Python's own limit, and far beyond it
        assert battered.post(CHAT, with_literal(field, nested(depth))).status == 400
    tools = '[{"type":"function","function":{"name":"f","parameters":%s}}]'
    assert battered.post(CHAT, with_literal("tools", tools % nested(1000))).status == 400


RECURSIVE = {
    "type": "object",
    "properties": {"value": {"type": "string"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["value", "next"],
}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"type": "string"}, {"$ref": "#"}]},
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.org/schema.json"},
        {"$ref": "/etc/passwd"},
        {"$ref": 7},
        nested(100),
        {"enum": ["x" * 100] * 2000},
        {"type": "string", "pattern": "(a{1000}){1000}"},
        {"type": "string", "pattern": "("},
        {"type": "array", "items": {"type": "string"}, "minItems": 10**9},
        {"type": "string", "maxLength": HUGE},
        {"type": "nonsense"},
        {"properties": 7},
        {"properties": {"a": 7}},
    ],
)
@pytest.mark.parametrize("field", ["response_format", "guided_json", "tools"])
def test_schemas_that_must_not_reach_an_engine(
    battered: AbusedServer, schema: dict[str, Any] | str, field: str
) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    fields: dict[str, Any] = {"guided_json": {"HERE": 0}}
    if field == "response_format":
        fields = {field: {"type": "json_schema", "json_schema": {"name": "a", "schema": {"HERE": 0}}}}
    if field == "tools":
        text = text if '"$ref"' in text else f'{{"type":"object","properties":{{"inner":{text}}}}}'
        fields = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"HERE": 0}}}]}
        fields |= {"tool_choice": "required"}
    param = "tools[0].function.parameters" if field == "tools" else field
    body = json.dumps(body_of(**fields)).replace('{"HERE": 0}', text).encode()
    began = time.monotonic()
    error = battered.assert_refused(CHAT, body, param)
    assert error["code"] in ("invalid_value", "unsupported_parameter")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("schema", [{"maxLength": HUGE}, {"pattern": "(?=a)(b+)+"}, {"minItems": 10**9}], ids=str)
def test_a_costly_schema_that_only_the_model_reads(battered: AbusedServer, schema: dict[str, Any]) -> None:
    """As agents send it: with tool_choice auto, nothing compiles it."""
    parameters = {"type": "object", "properties": {"inner": schema}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert battered.post(CHAT, body_of(tools=tools)).status == 200
    battered.assert_refused(CHAT, body_of(tools=tools, tool_choice="required"), "tools[0].function.parameters")


def test_ordinary_recursion_is_no_failure(battered: AbusedServer) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {**RECURSIVE}}}]
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": RECURSIVE}}
    for fields in ({"response_format": form}, {"tools": tools}, {"tools": tools, "tool_choice": "required"}):
        answer = battered.post(CHAT, body_of(**fields))
        assert answer.status in (200, 400), answer.body
    required = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": required}}
    answer = battered.post(CHAT, body_of(response_format=form))  # no document of any length satisfies it
    assert answer.status in (200, 400), answer.body


@pytest.mark.parametrize(
    ("regex", "code"),
    [
        ("(a{1000}){1000}", "invalid_value"),
        ("((((a{100}){100}){100}){100})", "invalid_value"),
        ("(" * 5000, "invalid_value"),
        ("(" * 500 + ")" * 500, "invalid_value"),
        ("[", "invalid_value"),
        ("a{2,1}", "invalid_value"),
        ("a{99999999999999999999}", "invalid_value"),
        ("(a+)+$", "invalid_value"),
        ("(a|a)*b", "invalid_value"),
        ("[a-z]+", "unsupported_parameter"),  # harmless, but this engine takes no regex at all
    ],
)
def test_catastrophic_regexes(battered: AbusedServer, regex: str, code: str) -> None:
    began = time.monotonic()
    error = battered.assert_refused(CHAT, body_of(guided_regex=regex), "guided_regex")
    assert error["code"] == code
    assert time.monotonic() - began < 20


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        (7, "tools"),
        ({"type": "function"}, "tools"),
        (["f"], "tools[0]"),
        ([{}], "tools"),
        ([{"type": "retrieval"}], "tools"),
        ([{"type": "function"}], "tools"),
        ([{"type": "function", "function": None}], "tools"),
        ([{"type": "function", "function": []}], "tools"),
        ([{"type": "function", "function": {}}], "tools"),
        ([function(name="")], "tools"),
        ([function(name="a b")], "tools"),
        ([function(name="a\x00b")], "tools"),
        ([function(name="../../etc/passwd")], "tools"),
        ([function(name="x" * 65)], "tools"),
        ([function(name="x" * 10**6)], "tools"),
        ([function(name="\u0661")], "tools"),
        ([function(name=["f"])], "tools"),
        ([function(description=7)], "tools"),
        ([function(parameters="{}")], "tools"),
        ([function(parameters=[])], "tools"),
        ([function(parameters={"type": "string"})], "tools"),
        ([function(parameters={"type": ["object"]})], "tools"),
        ([function(parameters={"properties": []})], "tools"),
        ([function(parameters={"properties": {"a": "string"}})], "tools[0].function.parameters"),
        ([function(), function()], "tools"),
        ([function(name=f"f{number}") for number in range(200)], "tools"),
    ],
)
def test_malformed_tools(battered: AbusedServer, tools: Any, param: str) -> None:
    battered.assert_refused(CHAT, body_of(tools=tools), param)


@pytest.mark.parametrize(
    "choice", ["sometimes", "required", "", {"type": "function"}, {"type": "function", "function": {"name": "g"}}, {}]
)
def test_malformed_tool_choices(battered: AbusedServer, choice: Any) -> None:
    tools = None if choice == "required" else [function()]
    battered.assert_refused(CHAT, body_of(tools=tools, tool_choice=choice), "tool_choice")


def test_the_server_is_as_before(battered: AbusedServer) -> None:
    battered.assert_as_before()
