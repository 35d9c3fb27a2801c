"""Schema-guided tool calls: the schemas that constrain the engine, and the parsers of its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.output_events import (
    AnswerText,
    OutputEvent,
    OutputEventParser,
    ToolCallArguments,
    ToolCallStart,
    merge_events,
)
from enginebay.text.tool_calls.argument_stream import ArgumentStream
from enginebay.text.tool_calls.call_object import CallObjectReader
from enginebay.text.tool_calls.formats import plain_json
from enginebay.text.tool_calls.json_call_parser import get_tool_names
from enginebay.text.tool_calls.json_scanner import WHITESPACE
from enginebay.util.json_schema_keywords import SCHEMA_MAP_KEYWORDS, VALUE_KEYWORDS

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
# Keywords that may allow or describe arguments other than the named ones.
_OPEN_OBJECT_KEYWORDS = frozenset(
    {
        "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties", "$ref", "allOf",
        "anyOf", "oneOf", "if", "dependencies", "dependentSchemas",
    }
)  # fmt: skip
_ROOT_KEYWORDS = ("$id", "$schema")
_ANSWER_DEFINITION = "the.answer"  # no tool can have this name


def build_calls_schema(tools: Sequence[Mapping[str, Any]], name: str | None, parallel: bool) -> dict[str, Any]:
    """Return the JSON schema of an answer that must call tools.

    With a name: the schema of that tool's arguments. Without: an array of {"name", "arguments"} objects with at least
    one call, and exactly one unless `parallel`.
    """
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    if name is not None:
        return _build_parameters_schema(functions[name])
    definitions: dict[str, Any] = {}
    calls = [_build_call_schema(function, definitions) for function in functions.values()]
    schema: dict[str, Any] = {"type": "array", "minItems": 1}
    if not parallel:
        schema["maxItems"] = 1
    schema["items"] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if definitions:
        schema["$defs"] = definitions
    return schema


def build_call_or_answer_schema(tools: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of either the answer or one call: {"name", "arguments"}."""
    definitions: dict[str, Any] = {}
    calls = [_build_call_schema(tool["function"], definitions) for tool in tools]
    schema: dict[str, Any] = {"anyOf": [_hoist_to_definitions(_ANSWER_DEFINITION, answer, definitions), *calls]}
    if definitions:
        schema["$defs"] = definitions
    return schema


def create_guided_parser(tools: Sequence[Mapping[str, Any]], name: str | None) -> OutputEventParser:
    """Return the parser for an answer guided by `build_calls_schema` with the same tools and name."""
    return plain_json.create_parser(tools) if name is None else NamedCallParser(name)


def _build_parameters_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the arguments. Forbids unnamed ones by default: guided models invent some."""
    parameters = function.get("parameters")
    if parameters is None:
        return dict(_NO_ARGUMENTS)
    named = parameters.get("properties") or {}
    required = set(parameters.get("required", ()))
    all_named = named and not _OPEN_OBJECT_KEYWORDS & parameters.keys() and required <= named.keys()
    return {"type": "object", **parameters, **({"additionalProperties": False} if all_named else {})}


def _hoist_to_definitions(name: str, schema: Mapping[str, Any], definitions: dict[str, Any]) -> Mapping[str, Any]:
    """Move a schema with references into the definitions and rebase them: they are relative to the document root."""
    base = f"#/$defs/{name}"
    moved = _rebase_references(schema, base)
    if moved == schema:
        return schema
    definitions[name] = {key: value for key, value in moved.items() if key not in _ROOT_KEYWORDS}
    return {"$ref": base}


def _build_call_schema(function: Mapping[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    name = function["name"]
    parameters = _hoist_to_definitions(name, _build_parameters_schema(function), definitions)
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [name]}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _rebase_references(schema: Any, base: str) -> Any:
    """Return the schema with its references rebased to `base`. Recursive: schema depth is limited earlier."""
    if isinstance(schema, Mapping):
        return {
            key: value if key in VALUE_KEYWORDS else _rebase_value(key, value, base) for key, value in schema.items()
        }
    if isinstance(schema, (list, tuple)):
        return [_rebase_references(item, base) for item in schema]
    return schema


def _rebase_value(key: str, value: Any, base: str) -> Any:
    if key == "$ref" and isinstance(value, str) and value.startswith("#"):
        return base + value[1:]
    if key in SCHEMA_MAP_KEYWORDS and isinstance(value, Mapping):
        return {name: _rebase_references(schema, base) for name, schema in value.items()}
    return _rebase_references(value, base)


class CallOrAnswerParser:
    """Parses an answer that is either one call or entirely text."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._call = CallObjectReader(0, get_tool_names(tools), exact=True)
        self._held = ""
        self._at = 0
        self._is_text = False

    def feed(self, text: str) -> list[OutputEvent]:
        self._held += text
        if self._is_text:
            return self._flush_text()
        out: list[OutputEvent] = []
        self._at = self._call.advance(self._held, self._at, out)
        if self._call.started:
            self._held, self._at = self._held[self._at :], 0
        ended = self._call.broken or self._call.done
        if ended and self._call.started:
            self._held = self._held.lstrip(WHITESPACE)  # nothing may follow a call
        if ended and (self._held or not self._call.started):
            self._is_text = True
            out += self._flush_text()
        return merge_events(out)

    def end(self) -> list[OutputEvent]:
        return [] if self._call.started and not self._is_text else self._flush_text()

    def _flush_text(self) -> list[OutputEvent]:
        held, self._held = self._held, ""
        return [AnswerText(held)] if held else []


class NamedCallParser:
    """Parses an answer that is the arguments of one call. An answer that is not an object is text."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stream = ArgumentStream()
        self._held = ""  # leading whitespace
        self._started = self._is_text = False

    def feed(self, text: str) -> list[OutputEvent]:
        out: list[OutputEvent] = []
        if not self._started and not self._is_text:
            self._held += text
            text = self._held.lstrip(WHITESPACE)
            if not text:
                return out
            self._started, self._is_text = text[0] == "{", text[0] != "{"
            if self._started:
                out.append(ToolCallStart(0, self._name))
            else:
                text = self._held
        if self._started and not self._is_text:
            text = self._emit_arguments(text, out)
        if text and self._is_text:
            out.append(AnswerText(text))
        return merge_events(out)

    def end(self) -> list[OutputEvent]:
        return [AnswerText(self._held)] if self._held and not self._started and not self._is_text else []

    def _emit_arguments(self, text: str, out: list[OutputEvent]) -> str:
        """Emit the arguments. Return the text after them."""
        end = 0
        if not self._stream.done:
            end, fragment = self._stream.advance(text, 0)
            if fragment:
                out.append(ToolCallArguments(0, fragment))
        rest = text[end:].lstrip(WHITESPACE)
        self._is_text = bool(rest)
        return rest
