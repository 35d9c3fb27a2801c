"""Unquoted values, typed by their schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from enginebay.text.tool_calls.schema_types import collect_allowed_types, find_property_schema, to_json

ROOT: dict[str, Any] = {
    "properties": {"unit": {"$ref": "#/$defs/Unit"}},
    "$defs": {"Unit": {"enum": ["c", "f"]}, "a/b": {"type": "number"}, "Loop": {"$ref": "#/$defs/Loop"}},
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        (
            {"enum": [1, 2.5, "x", None, True, [], {}]},
            {"integer", "number", "string", "null", "boolean", "array", "object"},
        ),
        ({"const": 3}, {"integer"}),
        ({"type": "string", "enum": ["1", "2"]}, {"string"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"allOf": [{"$ref": "#/$defs/Unit"}]}, {"string"}),
        ({"$ref": "#/$defs/a~1b"}, {"number"}),
        ({"$ref": "#/$defs/missing"}, set()),
        ({"$ref": "https://example.org/schema"}, set()),
        ({"$ref": "#/$defs/Loop"}, set()),
        ({"type": 5, "enum": "x", "anyOf": "y"}, set()),
        ({}, set()),
        (True, set()),
        (None, set()),
    ],
)
def test_types_of_a_schema(schema: Any, types: set[str]) -> None:
    assert collect_allowed_types(schema, ROOT) == types


def test_the_schema_of_an_argument() -> None:
    assert find_property_schema({"properties": {"a": {"type": "integer"}}}, "a") == {"type": "integer"}
    assert find_property_schema({"properties": {}, "additionalProperties": {"type": "number"}}, "b") == {
        "type": "number"
    }
    assert find_property_schema({}, "c") is None


@pytest.mark.parametrize(
    ("value", "types", "expected"),
    [
        ("5", "integer", 5),
        (" 5\n", "integer", 5),
        ("5", "string", "5"),
        ("5", "", "5"),
        ("5", "integer string", 5),
        ("05", "integer string", "05"),
        ("05", "integer", "05"),
        ("5.0", "integer", 5.0),
        ("-1.5e3", "number", -1500.0),
        ("inf", "number", "inf"),
        ("True", "boolean", True),
        ("false", "boolean", False),
        ("yes", "boolean", "yes"),
        ("null", "string null", None),
        ("None", "integer null", None),
        ("null", "string", "null"),
        ('{"a": [1]}', "object", {"a": [1]}),
        ("[1, 2]", "array", [1, 2]),
        ("[1, 2", "array", "[1, 2"),
        ("[1, 2]", "string array", [1, 2]),
        ("[1, 2]", "string", "[1, 2]"),
        (' a "b" \\ ', "string integer", ' a "b" \\ '),
        ('{"a": NaN}', "object", '{"a": NaN}'),
    ],
)
def test_values_take_the_type_that_fits(value: str, types: str, expected: Any) -> None:
    found = json.loads(to_json(value, frozenset(types.split())))
    assert found == expected
    assert type(found) is type(expected)
