"""JSON schemas that are too large, too deep, recursive, contradictory or malformed."""

from __future__ import annotations

from typing import Any

from tests.hostile.hostile_case import (
    COMPLETIONS,
    HUGE,
    RESPONSES,
    Expected,
    HostileCase,
    check_json,
    make_case,
    make_literal_case,
)


def _schema(name: str, schema: Any, expected: Expected = "any", *, checked: bool = True) -> HostileCase:
    check = check_json(schema) if checked and expected != "refused" else None
    return make_case(f"schema-{name}", {"guided_json": schema}, expected, check=check)


def _object(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or [], **more}


def _tree(levels: int, width: int) -> dict[str, Any]:
    """Definitions of which each requires `width` of the next: `width ** levels` values in all."""
    definitions: dict[str, Any] = {f"d{levels}": {"type": "integer"}}
    for level in range(levels):
        names = [f"p{number}" for number in range(width)]
        definitions[f"d{level}"] = _object({name: {"$ref": f"#/$defs/d{level + 1}"} for name in names}, names)
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def _nest(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = _object({"a": schema}, ["a"])
    return schema


STRING = {"type": "string"}
RECURSIVE = _object({"value": STRING, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, ["value", "next"])
OPTIONAL_500 = _object({f"property_{number}": STRING for number in range(500)}, additionalProperties=False)

SIZES = [
    _schema("500-optional", OPTIONAL_500),
    _schema("200-optional", _object({f"p{n}": {"type": "integer"} for n in range(200)}, additionalProperties=False)),
    _schema("1300-required", _object({f"p{n}": {"type": "integer"} for n in range(1300)}, [f"p{n}" for n in range(1300)])),
    _schema("optional-of-optional", _object({f"p{n}": _object({f"q{m}": STRING for m in range(30)}) for n in range(30)})),
    _schema("tree-of-references", _tree(10, 4)),
    _schema("deep-tree-of-references", _tree(25, 2)),
    _schema("wide-tree-of-references", _tree(3, 60)),
    _schema("narrow-chain-of-references", _tree(300, 1)),
    _schema("thirty-levels", _nest(14)),
    _schema("hundred-levels", _nest(100), "refused"),
    _schema("enum-of-a-thousand", {"enum": [f"value {number}" for number in range(1024)]}),
    _schema("enum-of-ten-thousand", {"enum": list(range(10_000))}, "refused"),
    _schema("enum-of-long-texts", {"enum": ["x" * 600 + str(number) for number in range(100)]}),
    _schema("enum-of-twins", {"enum": ["a"] * 1000}),
    _schema("enum-of-objects", {"enum": [{"a": [number, {"b": None}]} for number in range(300)]}),
    _schema("const-of-60-kilobytes", {"const": "x" * 60_000}),
    _schema("any-of-500", {"anyOf": [_object({f"p{n}": STRING}, [f"p{n}"]) for n in range(500)]}),
    _schema("one-of-200", {"oneOf": [{"const": n} for n in range(200)]}),
    _schema("all-of-200", {"allOf": [_object({f"p{n}": STRING}, [f"p{n}"]) for n in range(200)]}),
    _schema("any-of-any-of", {"anyOf": [{"anyOf": [{"anyOf": [{"type": "integer"}] * 10}] * 10}] * 10}),
    _schema("prefix-items", {"type": "array", "prefixItems": [{"type": "integer"}] * 1000, "items": False}),
    _schema("min-items", {"type": "array", "items": {"type": "integer"}, "minItems": 20_000}),
    _schema("nested-min-items", {"type": "array", "minItems": 5000, "items": {"type": "array", "minItems": 5000, "items": {"type": "array", "minItems": 5000, "items": {"type": "null"}}}}),
    _schema("nested-max-items", {"type": "array", "maxItems": 5000, "items": {"type": "array", "maxItems": 5000, "items": {"type": "integer"}}}),
    _schema("max-length", {"type": "string", "maxLength": 20_000}),
    _schema("min-length", {"type": "string", "minLength": 20_000}),
    _schema("many-max-lengths", _object({f"p{n}": {"type": "string", "maxLength": 2000} for n in range(50)}, [f"p{n}" for n in range(50)])),
    _schema("min-properties", {"type": "object", "minProperties": 15_000, "additionalProperties": {"type": "integer"}}),
    _schema("long-property-names", _object({"x" * 20_000: STRING, "y" * 20_000: STRING}, ["x" * 20_000])),
    _schema("too-many-bytes", {"type": "object", "description": "x" * 200_000}, "refused"),
    _schema("pattern-properties", {"type": "object", "patternProperties": {f"^p{n}_": STRING for n in range(200)}}, checked=False),
]  # fmt: skip

RECURSION = [
    _schema("itself", {"$ref": "#"}, "refused"),
    _schema("itself-over-two", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "refused"),
    _schema("all-of-itself", {"allOf": [{"$ref": "#"}]}, "refused"),
    _schema("list", RECURSIVE),
    _schema("endless-object", _object({"a": {"$ref": "#"}}, ["a"])),
    _schema("endless-array", {"type": "array", "minItems": 1, "items": {"$ref": "#"}}),
    _schema("wide-recursion", _object({f"p{n}": {"$ref": "#"} for n in range(100)})),
    _schema("wide-required-recursion", _object({f"p{n}": {"$ref": "#"} for n in range(50)}, [f"p{n}" for n in range(50)])),
    _schema("mutual-recursion", {"$ref": "#/$defs/a", "$defs": {
        "a": {"type": "array", "items": {"$ref": "#/$defs/b"}}, "b": _object({"a": {"$ref": "#/$defs/a"}})}}),
    _schema("recursion-through-properties-names", _object({"$ref": STRING, "$defs": STRING}, ["$ref"])),
    _schema("reference-to-nowhere", {"$ref": "#/$defs/nothing"}, "refused"),
    _schema("reference-to-a-host", {"$ref": "http://127.0.0.1:1/schema.json"}, "refused"),
    _schema("reference-to-a-file", {"$ref": "file:///etc/passwd"}, "refused"),
    _schema("reference-into-an-enum", {"$ref": "#/enum/0", "enum": [{"type": "string"}]}, checked=False),
    _schema("reference-into-a-list", {"anyOf": [{"type": "integer"}, {"$ref": "#/anyOf/0"}]}),
    _schema("reference-with-escapes", {"$ref": "#/$defs/a~1b~0c%25", "$defs": {"a/b~c%": {"type": "integer"}}}, checked=False),
    _schema("dynamic-reference", {"$dynamicRef": "#a", "$dynamicAnchor": "a"}, "refused"),
    _schema("not-itself", {"not": {"not": {"not": {"type": "string"}}}}, checked=False),
]  # fmt: skip

CONTRADICTIONS = [
    _schema("false", _object({"a": False}, ["a"])),
    _schema("not-anything", {"not": {}}, checked=False),
    _schema("two-types", {"allOf": [{"type": "string"}, {"type": "integer"}]}),
    _schema("empty-range", {"type": "integer", "minimum": 10, "maximum": 5}),
    _schema("empty-number-range", {"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1}),
    _schema("empty-length-range", {"type": "string", "minLength": 10, "maxLength": 5}),
    _schema("empty-items-range", {"type": "array", "minItems": 10, "maxItems": 5, "items": {"type": "integer"}}),
    _schema("const-outside-enum", {"const": "a", "enum": ["b"]}),
    _schema("required-but-forbidden", _object({}, ["a"], additionalProperties=False)),
    _schema("enum-of-another-type", {"type": "string", "enum": [1, 2]}),
    _schema("pattern-and-format", {"type": "string", "pattern": "^[a-c]{3}$", "format": "uuid"}, checked=False),
    _schema("no-multiple", {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6}),
    _schema("empty-one-of", {"oneOf": [{"type": "integer"}, {"type": "integer"}]}, checked=False),
    _schema("min-properties-of-none", {"type": "object", "minProperties": 3, "properties": {"a": STRING}, "additionalProperties": False}),
    _schema("unique-booleans", {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "uniqueItems": True}),
]  # fmt: skip

MALFORMED = [
    _schema("type-of-nothing", {"type": []}, "refused"),
    _schema("type-unknown", {"type": "everything"}, "refused"),
    _schema("type-is-an-object", {"type": {"a": 1}}, "refused"),
    _schema("type-of-all", {"type": ["string", "number", "integer", "boolean", "object", "array", "null"]}),
    _schema("properties-is-a-list", {"properties": []}, "refused"),
    _schema("property-is-a-number", {"properties": {"a": 7}}, "refused"),
    _schema("required-is-a-text", {"required": "a"}, "refused"),
    _schema("required-of-numbers", {"required": [1]}, "refused"),
    _schema("enum-is-empty", {"enum": []}, "refused"),
    _schema("enum-is-a-text", {"enum": "a"}, "refused"),
    _schema("all-of-booleans", {"allOf": [True, {"type": "integer"}]}),
    _schema("any-of-is-empty", {"anyOf": []}, checked=False),
    _schema("items-is-a-number", {"items": 7}, "refused"),
    _schema("items-is-false", {"type": "array", "items": False}),
    _schema("minimum-is-a-text", {"type": "integer", "minimum": "1"}, checked=False),
    _schema("minimum-is-null", {"type": "integer", "minimum": None}, checked=False),
    _schema("exclusive-minimum-is-true", {"type": "integer", "minimum": 1, "exclusiveMinimum": True}, checked=False),
    _schema("multiple-of-zero", {"type": "integer", "multipleOf": 0}, checked=False),
    _schema("multiple-of-a-little", {"type": "number", "multipleOf": 1e-300, "minimum": 0, "maximum": 1}, checked=False),
    _schema("multiple-of-minus-one", {"type": "integer", "multipleOf": -1}, checked=False),
    _schema("bounds-of-400-digits", {"type": "integer", "minimum": -HUGE, "maximum": HUGE}),
    _schema("bounds-that-are-close", {"type": "number", "minimum": 0.1, "maximum": 0.10000000000000002}),
    _schema("bounds-of-all-sizes", {"type": "number", "minimum": -1.7e308, "maximum": 1.7e308}),
    _schema("bounds-of-64-bits", {"type": "integer", "minimum": -(2**63), "maximum": 2**64}),
    _schema("length-is-negative", {"type": "string", "minLength": -1}, "refused"),
    _schema("length-is-a-half", {"type": "string", "maxLength": 1.5}, "refused"),
    _schema("length-of-400-digits", {"type": "string", "maxLength": HUGE}, "refused"),
    _schema("pattern-catastrophic", {"type": "string", "pattern": "(a+)+$"}, checked=False),
    _schema("pattern-optional", {"type": "string", "pattern": "^(?:[a-z]?){1000}$"}),
    _schema("pattern-of-nul", {"type": "string", "pattern": "a\x00b"}, checked=False),
    _schema("pattern-invalid", {"type": "string", "pattern": "("}, "refused"),
    _schema("pattern-is-a-number", {"type": "string", "pattern": 7}, "refused"),
    _schema("patterns-everywhere", _object({f"p{n}": {"type": "string", "pattern": "^[a-z]{1,100}$"} for n in range(50)}, [f"p{n}" for n in range(50)])),
    _schema("format-of-each-kind", _object({name: {"type": "string", "format": name} for name in (
        "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid", "uri", "regex", "nothing")}), checked=False),
    _schema("format-is-a-number", {"type": "string", "format": 7}, checked=False),
    _schema("property-names-odd", _object({"": STRING, "\x00": STRING, '"': STRING, "\\": STRING, "\n": STRING, "👩‍👩‍👧‍👦": STRING}, [""]), checked=False),
    _schema("property-names-of-python", _object({"__class__": STRING, "__proto__": STRING, "constructor": STRING}, ["__class__"])),
    _schema("const-of-nul", {"const": "a\x00b"}),
    _schema("const-of-a-huge-number", {"const": HUGE}, checked=False),
    _schema("unknown-keywords", {"type": "integer", "x-anything": {"$ref": "#/nowhere"}, "$comment": "x"}, checked=False),
    _schema("unevaluated", _object({"a": STRING}, unevaluatedProperties=False), checked=False),
    _schema("conditional", {"if": {"type": "string"}, "then": {"minLength": 3}, "else": {"type": "integer"}}, checked=False),
    _schema("dependent", _object({"a": STRING}, dependentSchemas={"a": {"required": ["b"]}}), checked=False),
    _schema("contains", {"type": "array", "contains": {"type": "integer"}, "minContains": 3}, checked=False),
    make_case("schema-is-text", {"guided_json": '{"type": "integer"}'}, check=check_json({"type": "integer"})),
    make_case("schema-is-broken-text", {"guided_json": "{"}, "refused"),
    make_case("schema-is-deep-text", {"guided_json": "[" * 100_000}, "refused"),
    make_case("schema-is-a-list", {"guided_json": []}, "refused"),
    make_literal_case("schema-number-too-large", "guided_json", '{"type": "number", "maximum": 1e400}'),
    make_literal_case("schema-number-nan", "guided_json", '{"type": "number", "maximum": NaN}'),
    make_literal_case("schema-number-of-many-digits", "guided_json", '{"type": "number", "maximum": 0.' + "1" * 3000 + "}", "any"),
    make_literal_case("schema-lone-surrogate", "guided_json", r'{"enum": ["\ud800"]}'),
    make_literal_case("schema-twice-the-same-key", "guided_json", '{"type": "string", "type": "integer"}', "any"),
]  # fmt: skip

FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": OPTIONAL_500}}
TREE_FORM = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": _tree(10, 4)}}

PLACES = [
    make_case("schema-form-optional", {"response_format": FORM}, check=check_json(OPTIONAL_500)),
    make_case("schema-form-tree", {"response_format": TREE_FORM}, check=check_json(_tree(10, 4))),
    make_case("schema-form-streamed", {"response_format": TREE_FORM, "stream": True}),
    make_case("schema-form-completions", {"response_format": FORM}, path=COMPLETIONS, check=check_json(OPTIONAL_500)),
    make_case("schema-form-responses", {"text": {"format": {"type": "json_schema", "name": "a", "schema": OPTIONAL_500}}},
              path=RESPONSES, check=check_json(OPTIONAL_500)),
    make_case("schema-form-responses-tree", {"text": {"format": {"type": "json_schema", "name": "a", "schema": _tree(10, 4)}}},
              path=RESPONSES, check=check_json(_tree(10, 4))),
    make_case("schema-form-of-nothing", {"response_format": {"type": "json_schema"}}, "refused"),
    make_case("schema-form-unknown", {"response_format": {"type": "yaml"}}, "refused"),
    make_case("schema-form-object", {"response_format": {"type": "json_object"}}, check=check_json({"type": "object"})),
    make_case("schema-form-name-is-a-list", {"response_format": {"type": "json_schema", "json_schema": {"name": [], "schema": {}}}}, "refused"),
    make_case("schema-of-many-choices", {"guided_json": RECURSIVE, "n": 8, "temperature": 1}, check=check_json(RECURSIVE)),
    make_case("schema-with-stop", {"guided_json": RECURSIVE, "stop": ['"']}),
    make_case("schema-with-bias", {"guided_json": RECURSIVE, "logit_bias": {str(n): 100 for n in range(200)}}),
    make_case("schema-with-min-tokens", {"guided_json": {"const": 1}, "min_tokens": 12, "max_tokens": 12}),
    make_case("schema-with-no-repeats", {"guided_json": RECURSIVE, "no_repeat_ngram_size": 1, "temperature": 1}),
    make_case("schema-ignoring-the-end", {"guided_json": {"const": 1}, "ignore_eos": True}),
]  # fmt: skip

CASES = [*SIZES, *RECURSION, *CONTRADICTIONS, *MALFORMED, *PLACES]
