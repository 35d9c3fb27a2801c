from __future__ import annotations

import copy
from typing import Any

import pytest

from enginebay.engines.llamacpp.guided.llguidance_grammar import (
    KNOWN_FORMATS,
    drop_unknown_formats,
    write_choices,
    write_grammar,
    write_regex,
)
from enginebay.errors import InvalidRequest, Unsupported

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


# Regexes and choices


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        (r"^\d{3}-[a-z]+$", r"[\x{30}-\x{39}]{3}\x{2D}[\x{61}-\x{7A}]+"),
        (r"(cat|dog)s?", "(?:cat|dog)s?"),
        (r"(?:x|)", "(?:x|)"),
        (r"(?P<year>\d{4})", r"(?:[\x{30}-\x{39}]{4})"),
        (r"a.b\.", r"a[\x{1}-\x{9}\x{B}-\x{D7FF}\x{E000}-\x{10FFFF}]b\x{2E}"),
        (r"a*?b{2,}c{,3}d{1,2}", "a*b{2,}c{0,3}d{1,2}"),
        (r"{a}/", r"\x{7B}a\x{7D}\x{2F}"),
        (r"é日😀", r"\x{E9}\x{65E5}\x{1F600}"),
        (r"[^\x00-\x1f\S]", r"[\x{20}-\x{20}]"),
        (r"[\w-]", r"[\x{2D}-\x{2D}\x{30}-\x{39}\x{41}-\x{5A}\x{5F}-\x{5F}\x{61}-\x{7A}]"),
        ("", ""),
    ],
)
def test_writes_a_regex(pattern: str, written: str) -> None:
    assert write_regex(pattern) == f"%llguidance {{}}\nstart: /(?:{written})/\n"


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        (r"(?=a)b", "lookahead"),
        (r"(?<!a)b", "lookbehind"),
        (r"(?i)a", "inline flag"),
        (r"(a)\1", "backreference"),
        (r"\bfoo", r"'\\b'"),
        (r"a++", "possessive"),
        (r"a^b", r"'\^'"),
        (r"[[:alpha:]]", "POSIX"),
        (r"\p{L}", r"'\\p'"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(pattern: str, named: str) -> None:
    with pytest.raises(Unsupported, match=named) as refusal:
        write_regex(pattern)
    assert refusal.value.param == "guided_regex" and refusal.value.hint


@pytest.mark.parametrize("pattern", ["(a", "a)", "[a", "a**", "*a", "a{3,2}", "a\\", r"\xZZ"])
def test_mistakes_are_the_requests_fault(pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        write_regex(pattern)


def test_choices_are_escaped_and_listed_once() -> None:
    written = write_choices(('say "hi"', "a\nb", "a\nb"))
    assert written == "%llguidance {}\nstart: /(?:say\\x{20}\\x{22}hi\\x{22}|a\\x{A}b)/\n"


def test_a_grammar_without_recursion_becomes_a_regex() -> None:
    text = 'root ::= "a" b{2}\nb ::= [0-9] | "x"+'
    assert write_grammar(text) == "%llguidance {}\nstart: /(?:(?:a)(?:[\\x{30}-\\x{39}]|(?:x)+){2})/\n"
    assert write_grammar('root ::= "(" root? ")"') is None
    assert write_grammar("root ::= (") is None
