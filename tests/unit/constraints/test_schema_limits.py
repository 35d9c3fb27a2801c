"""Which JSON schemas may reach an engine: size, references, patterns, counts."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from enginebay.config.sections.server_section import ServerLimits
from enginebay.constraints.schema_limits import check_schema
from enginebay.errors import InvalidRequest, RequestError, Unsupported

LIMITS = ServerLimits()


def refusal(schema: Any, limits: ServerLimits = LIMITS) -> RequestError:
    with pytest.raises(RequestError) as error:
        check_schema(schema, limits, "response_format")
    assert error.value.param == "response_format" and error.value.hint
    assert len(error.value.message) < 400 and "\n" not in error.value.message
    return error.value


def deep(levels: int, keyword: str) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {keyword: schema} if keyword != "properties" else {"properties": {"a": schema}}
    return schema


def tangle(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


LINKED_LIST = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
        }
    },
    "$ref": "#/$defs/node",
}
TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
ORDINARY = [
    True,
    {},
    LINKED_LIST,
    TREE,
    {"type": ["string", "null"], "enum": ["a", None], "minLength": 1, "maxLength": 2000},
    {"items": [{"type": "string"}, True], "additionalItems": False, "prefixItems": [{}]},
    {"properties": {"$ref": {"type": "string"}, "enum": {"type": "number"}, "pattern": {"type": "boolean"}}},
    {"enum": [{"$ref": "http://x"}, {"type": "nonsense"}], "default": {"$ref": 5}},
    {"const": {"pattern": "("}},
    {"const": "a", "enum": ["a", "b"]},
    {"type": ["string", "null"], "enum": ["a", None]},
    {"type": "number", "enum": [1, 2.5]},
    {"type": "integer", "const": 1.0},
    {"type": "string", "enum": ["a", 1]},
    {"type": "object", "patternProperties": {"^a": {}}, "required": ["a"], "additionalProperties": False},
    {"required": ["a"], "additionalProperties": False},
    {"definitions": {"a/b": {"type": "string"}, "c~d": {}, "e f": {}}, "$ref": "#/definitions/a~1b"},
    {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}, "b": {}}, "$ref": "#/$defs/a"},
    {"x-mine": {"deep": [{"type": "string"}]}, "$ref": "#/x-mine/deep/0"},
    {"$defs": {"e f": {"type": "null"}}, "$ref": "#/$defs/e%20f"},
    {"patternProperties": {"^[a-z]+$": {"pattern": r"^\d{1,3}(\.\d+)*$"}}, "additionalProperties": False},
    {"if": {"type": "string"}, "then": {"minLength": 1.0}, "else": {"not": {"type": "null"}}},
]


@pytest.mark.parametrize("schema", ORDINARY, ids=lambda schema: json.dumps(schema)[:40])
def test_ordinary_schemas_pass(schema: Any) -> None:
    check_schema(schema, LIMITS, "p")
    Draft202012Validator.check_schema({} if isinstance(schema, dict) and "items" in schema else schema)


@pytest.mark.parametrize("schema", [None, False, 5, "{}", [], [{}]], ids=repr)
def test_only_an_object_is_a_schema(schema: Any) -> None:
    assert refusal(schema).message == "the schema is not a JSON object"


# --- size


@pytest.mark.parametrize(
    ("levels", "keyword", "depth"), [(32, "items", 33), (1000, "items", 1001), (16, "properties", 33)]
)
def test_depth(levels: int, keyword: str, depth: int) -> None:
    assert refusal(deep(levels, keyword)).message == f"the schema has {depth} nested levels; the maximum is 32"


def test_the_deepest_allowed_schema_passes() -> None:
    check_schema(deep(31, "items"), LIMITS, "p")
    check_schema(deep(15, "properties"), LIMITS, "p")


@pytest.mark.parametrize("keyword", ["items", "not", "properties"])
def test_a_hundred_thousand_levels_raise_no_recursion_error(keyword: str) -> None:
    schema = deep(100_000, keyword)
    assert "nested levels; the maximum is 32" in refusal(schema).message
    while schema:  # freed level by level: Python would recurse
        inner = schema[keyword]
        schema = inner["a"] if keyword == "properties" else inner


def test_depth_counts_in_plain_values_too() -> None:
    assert "nested levels" in refusal({"const": tangle(40)}).message


def test_nodes() -> None:
    schema = {"properties": {f"p{number}": {"type": "string"} for number in range(2100)}}
    assert refusal(schema).message == "the schema has 4202 values; the maximum is 4096"


def test_bytes() -> None:
    text = "x" * 65_600
    for schema in ({"description": text}, {text: 1}, {"const": [text]}, {"description": "é" * 33_000}):
        assert " bytes; the maximum is 65536" in refusal(schema).message
    check_schema({"description": "x" * 65_000}, LIMITS, "p")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text("abé "),
        lambda x: st.lists(x) | st.dictionaries(st.text("ab"), x),
    )
)
def test_the_size_estimate_is_close_to_the_json_size(value: Any) -> None:
    schema = {"const": value}
    exact = len(json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode())
    check_schema(schema, ServerLimits(schema_bytes=exact * 2 + 16), "p")
    with pytest.raises(InvalidRequest, match="bytes; the maximum"):
        check_schema(schema, ServerLimits(schema_bytes=exact // 2, schema_depth=200), "p")


def test_a_huge_schema_is_refused_early() -> None:
    schema = {"enum": [[] for _ in range(300_000)]}
    began = time.process_time()
    assert "at least" in refusal(schema).message
    assert time.process_time() - began < 0.2


def test_a_huge_number_is_handled() -> None:
    check_schema({"const": 10**10_000}, LIMITS, "p")
    assert "bytes; the maximum" in refusal({"const": 1 << 400_000}).message


# --- references


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        {"not": {"$ref": "#"}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$defs": {"a": {"oneOf": [{}, {"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}},
        {"properties": {"x": {"$ref": "#/properties/x"}}},
        {"$defs": {"a": {"if": {"$ref": "#/$defs/a"}}}},
        {"dependentSchemas": {"a": {"$ref": "#"}}},
        {"x-hidden": {"a": {"$ref": "#/x-hidden/a"}}, "properties": {"p": {"$ref": "#/x-hidden/a"}}},
    ],
    ids=json.dumps,
)
def test_in_place_cycles_are_refused(schema: Any) -> None:
    error = refusal(schema)
    assert "refers to itself endlessly" in error.message
    assert error.hint == "recurse through properties or items"


def test_shared_references_are_not_a_cycle_and_stay_fast() -> None:
    defs: dict[str, Any] = {"d0": {"type": "string"}}
    for number in range(1, 200):
        defs[f"d{number}"] = {"allOf": [{"$ref": f"#/$defs/d{number - 1}"}] * 2}
    began = time.process_time()
    check_schema({"$defs": defs, "$ref": "#/$defs/d199"}, LIMITS, "p")
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("http://example.org/s.json", "only references within the schema are supported"),
        ("file:///etc/passwd", "only references within"),
        ("other.json#/a", "only references within"),
        ("#anchor", "only references within"),
        ("", "only references within"),
        (5, "is not a string"),
        ("#/$defs/missing", "points to '#/$defs/missing', which does not exist"),
        ("#/", "which does not exist"),
        ("#/anyOf/1", "which does not exist"),
        ("#/anyOf/99999999999999999999", "which does not exist"),
        ("#/anyOf/-1", "which does not exist"),
        ("#/title", "which is not a schema"),
        ("#/anyOf", "which is not a schema"),
    ],
)
def test_invalid_references(reference: Any, expected: str) -> None:
    error = refusal({"title": "t", "anyOf": [{}], "properties": {"p": {"$ref": reference}}})
    assert error.message.startswith("in the schema, #/properties/p/$ref ") and expected in error.message


def test_dynamic_references_are_refused() -> None:
    assert refusal({"items": {"$dynamicRef": "#x"}}).message == "in the schema, #/items/$dynamicRef is not supported"


# --- values


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "strng"}, "#/type is 'strng', expected one of string, number"),
        ({"type": []}, "#/type is not a type name"),
        ({"type": [["string"]]}, "#/type is not a type name"),
        ({"type": None}, "#/type is not a type name"),
        ({"enum": []}, "#/enum has no values"),
        ({"const": "a", "enum": ["b"]}, "#/enum does not contain the value of const"),
        ({"properties": {"a": {"const": None, "enum": [1, "a"]}}}, "#/properties/a/enum does not contain"),
        ({"type": "string", "enum": [1, 2]}, "#/type matches no value"),
        ({"type": ["integer", "null"], "const": True}, "#/type matches no value"),
        ({"type": "integer", "enum": [1.5]}, "#/type matches no value"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "#/required has 'a', which"),
        ({"type": "object", "properties": 7, "required": ["a"], "additionalProperties": False}, "#/"),
        ({"enum": "a"}, "#/enum is not a list"),
        ({"enum": list(range(1025))}, "#/enum has 1025 values; the maximum is 1024"),
        ({"required": [1]}, "#/required is not a list of names"),
        ({"required": "a"}, "#/required is not a list of names"),
        ({"properties": []}, "#/properties is not an object of schemas"),
        ({"properties": {"a": 5}}, "#/properties/a is not a schema"),
        ({"anyOf": {}}, "#/anyOf is not a list of schemas"),
        ({"anyOf": ["x"]}, "#/anyOf/0 is not a schema"),
        ({"items": None}, "#/items is not a schema"),
        ({"maxLength": 10**6}, "#/maxLength is 1000000; the maximum is 20000"),
        ({"items": {"minItems": 10**400}}, "#/items/minItems is over 1000000000000000; the maximum is 20000"),
        ({"minItems": -1}, "#/minItems is not a non-negative integer"),
        ({"maxItems": True}, "#/maxItems is not a non-negative integer"),
        ({"maxItems": "3"}, "#/maxItems is not a non-negative integer"),
        ({"maxItems": 1.5}, "#/maxItems is not a non-negative integer"),
    ],
    ids=str,
)
def test_malformed_keywords_name_their_path(schema: Any, expected: str) -> None:
    error = refusal(schema)
    assert isinstance(error, InvalidRequest) and error.message.startswith(f"in the schema, {expected}")


@pytest.mark.parametrize("schema", [{"pattern": "(a+)+"}, {"patternProperties": {"(a+)+": {}}}], ids=str)
def test_patterns_are_checked_as_regexes(schema: Any) -> None:
    inside = {"properties": {"p": schema}}
    message = refusal(inside).message
    assert message.startswith("#/properties/p/pattern") and "unbounded repeat" in message


def test_an_unsupported_pattern_keeps_its_error_kind() -> None:
    assert isinstance(refusal({"pattern": "(?=a)"}), Unsupported)
    assert refusal({"pattern": 5}).message == "#/pattern: the regex is not a string"


def test_patterns_are_counted_together() -> None:
    schema = {"properties": {f"p{number}": {"pattern": "a{9000}"} for number in range(3)}}
    assert "need 27000 states in total; the maximum is 20000" in refusal(schema).message


def test_long_names_are_cut_in_messages() -> None:
    message = refusal({"properties": {"x" * 500: {"properties": {"y" * 500: {"items": {"type": "z" * 500}}}}}}).message
    assert "x" * 40 in message and "x" * 41 not in message and "z" * 61 not in message


@pytest.mark.parametrize(
    "schema",
    [{"maxLength": 524_288}, {"enum": list(range(2000))}, {"pattern": "(?=a)"}, {"patternProperties": {"(a+)+": {}}}],
    ids=str,
)
def test_what_is_costly_to_compile_may_be_shown_to_the_model(schema: Any) -> None:
    inside = {"properties": {"p": schema}}
    refusal(inside)
    check_schema(inside, LIMITS, "p", compiled=False)


@pytest.mark.parametrize("schema", [{"type": "strng"}, {"maxLength": -1}, {"pattern": 5}, deep(33, "items")], ids=str)
def test_a_schema_for_the_model_must_still_be_one(schema: Any) -> None:
    with pytest.raises(RequestError):
        check_schema(schema, LIMITS, "p", compiled=False)
