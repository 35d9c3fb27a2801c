from __future__ import annotations

import copy
from typing import Any

import pytest

from enginebay.engines.llamacpp.llguidance_schema import KNOWN_FORMATS, drop_unknown_formats

_URI = {"type": "string", "format": "uri"}
_TEXT = {"type": "string"}


@pytest.mark.parametrize(
    "name", ["uri", "uri-reference", "iri", "idn-email", "json-pointer", "regex", "uuid4", "", "Date"]
)
def test_a_format_that_is_not_known_is_left_out(name: str) -> None:
    assert drop_unknown_formats({"type": "string", "minLength": 3, "format": name}) == {**_TEXT, "minLength": 3}


@pytest.mark.parametrize("name", sorted(KNOWN_FORMATS))
def test_a_format_that_is_known_stays(name: str) -> None:
    assert drop_unknown_formats({**_TEXT, "format": name}) == {**_TEXT, "format": name}


@pytest.mark.parametrize("value", [3, None, ["date"], {"a": 1}])
def test_a_format_that_is_no_text_stays_for_the_library_to_refuse(value: Any) -> None:
    assert drop_unknown_formats({**_TEXT, "format": value}) == {**_TEXT, "format": value}


@pytest.mark.parametrize(
    "keyword",
    [
        "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    ],
)  # fmt: skip
def test_schemas_under_a_keyword(keyword: str) -> None:
    assert drop_unknown_formats({keyword: _URI}) == {keyword: _TEXT}
    assert drop_unknown_formats({keyword: False}) == {keyword: False}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "items", "oneOf", "prefixItems"])
def test_schemas_in_a_list(keyword: str) -> None:
    assert drop_unknown_formats({keyword: [_URI, True, {"items": _URI}]}) == {keyword: [_TEXT, True, {"items": _TEXT}]}


@pytest.mark.parametrize(
    "keyword", ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"]
)
def test_schemas_by_name(keyword: str) -> None:
    """Whatever the name, also where it is that of a keyword."""
    names = ("a", "format", "enum", "const", "default", "examples", "properties")
    assert drop_unknown_formats({keyword: dict.fromkeys(names, _URI)}) == {keyword: dict.fromkeys(names, _TEXT)}


def test_a_schema_that_only_a_reference_finds() -> None:
    schema = {"$ref": "#/components/schemas/a", "components": {"schemas": {"a": _URI}}}
    assert drop_unknown_formats(schema) == {**schema, "components": {"schemas": {"a": _TEXT}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"format": {"type": "string", "enum": ["uri"]}}, "required": ["format"]},
        {"properties": {"format": True}},
        {"enum": [{"format": "uri"}, "format"]},
        {"const": {"format": "uri"}},
        {"default": {"format": "uri"}, "examples": [{"format": "uri"}], "example": {"properties": {"a": _URI}}},
        {"dependencies": {"format": ["a"]}, "dependentRequired": {"format": ["a"]}},
        {"properties": 7, "items": None, "anyOf": "format"},
    ],
)
def test_what_is_no_keyword_stays(schema: dict[str, Any]) -> None:
    assert drop_unknown_formats(schema) == schema


def test_the_callers_schema_stays_as_it_was() -> None:
    schema = {**_URI, "properties": {"a": dict(_URI)}, "anyOf": [dict(_URI)]}
    before = copy.deepcopy(schema)
    assert drop_unknown_formats(schema) != schema
    assert schema == before
