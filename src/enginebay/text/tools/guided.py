"""Tool calls under a schema: what the engine is held to, be it forced to call or free to, and the parser of what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.schema_keywords import NAMED, VALUES
from enginebay.text.tools import plain
from enginebay.text.tools.arguments import ArgumentStream
from enginebay.text.tools.events import CallArguments, CallStart, Text, ToolEvent, ToolParser, joined
from enginebay.text.tools.scan import SPACE

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
# Keywords that may speak of arguments beside the named ones.
_SPEAK_OF_OTHERS = frozenset(
    {
        "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties", "$ref", "allOf",
        "anyOf", "oneOf", "if", "dependencies", "dependentSchemas",
    }
)  # fmt: skip
_DOCUMENT = ("$id", "$schema")  # keywords for the root of a document
_ANSWER = "the.answer"  # among definitions: no tool can have this name


def calls_schema(tools: Sequence[Mapping[str, Any]], name: str | None, parallel: bool) -> dict[str, Any]:
    """The JSON schema that guides the answer.

    With a name: the schema of that tool's arguments alone. Without: an array of {"name", "arguments"} objects, each one
    of the tools; at least one call, and exactly one unless `parallel`.
    """
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    if name is not None:
        return _parameters(functions[name])
    definitions: dict[str, Any] = {}
    calls = [_call(function, definitions) for function in functions.values()]
    schema: dict[str, Any] = {"type": "array", "minItems": 1}
    if not parallel:
        schema["maxItems"] = 1
    schema["items"] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if definitions:
        schema["$defs"] = definitions
    return schema


def call_or_answer_schema(tools: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema that guides an answer of which the model may make a call instead: {"name", "arguments"} of one tool."""
    definitions: dict[str, Any] = {}
    calls = [_call(tool["function"], definitions) for tool in tools]
    schema: dict[str, Any] = {"anyOf": [_at_home(_ANSWER, answer, definitions), *calls]}
    if definitions:
        schema["$defs"] = definitions
    return schema


def guided_parser(tools: Sequence[Mapping[str, Any]], name: str | None) -> ToolParser:
    """Parses an answer that was guided by `calls_schema` of the same tools and name."""
    return plain.parser(tools) if name is None else NamedCall(name)


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """A model that must fill in something invents arguments, and functions take those they know: no others, unless said."""
    given = function.get("parameters")
    if given is None:
        return dict(_NO_ARGUMENTS)
    named = given.get("properties") or {}
    all_named = named and not _SPEAK_OF_OTHERS & given.keys() and set(given.get("required", ())) <= named.keys()
    return {"type": "object", **given, **({"additionalProperties": False} if all_named else {})}


def _at_home(name: str, schema: Mapping[str, Any], definitions: dict[str, Any]) -> Mapping[str, Any]:
    """References count from the root of a document: a schema that has some keeps them only if it moves as a whole."""
    base = f"#/$defs/{name}"
    moved = _with_references_at(schema, base)
    if moved == schema:
        return schema
    definitions[name] = {key: value for key, value in moved.items() if key not in _DOCUMENT}
    return {"$ref": base}


def _call(function: Mapping[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    name = function["name"]
    parameters = _at_home(name, _parameters(function), definitions)
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [name]}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _with_references_at(schema: Any, base: str) -> Any:
    """The schema with its references made to count from `base`. Recursive: the depth of schemas is limited before this."""
    if isinstance(schema, Mapping):
        return {key: value if key in VALUES else _moved(key, value, base) for key, value in schema.items()}
    if isinstance(schema, (list, tuple)):
        return [_with_references_at(item, base) for item in schema]
    return schema


def _moved(key: str, value: Any, base: str) -> Any:
    if key == "$ref" and isinstance(value, str) and value.startswith("#"):
        return base + value[1:]
    if key in NAMED and isinstance(value, Mapping):
        return {name: _with_references_at(one, base) for name, one in value.items()}
    return _with_references_at(value, base)


class NamedCall:
    """The whole answer is the arguments of one call. An answer that is no object comes out as text."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stream = ArgumentStream()
        self._held = ""  # white space in front
        self._started = self._is_text = False

    def feed(self, text: str) -> list[ToolEvent]:
        out: list[ToolEvent] = []
        if not self._started and not self._is_text:
            self._held += text
            text = self._held.lstrip(SPACE)
            if not text:
                return out
            self._started, self._is_text = text[0] == "{", text[0] != "{"
            if self._started:
                out.append(CallStart(0, self._name))
            else:
                text = self._held
        if self._started and not self._is_text:
            text = self._arguments(text, out)
        if text and self._is_text:
            out.append(Text(text))
        return joined(out)

    def end(self) -> list[ToolEvent]:
        return [Text(self._held)] if self._held and not self._started and not self._is_text else []

    def _arguments(self, text: str, out: list[ToolEvent]) -> str:
        """Give out the arguments; what is left behind them."""
        end = 0
        if not self._stream.done:
            end, fragment = self._stream.advance(text, 0)
            if fragment:
                out.append(CallArguments(0, fragment))
        rest = text[end:].lstrip(SPACE)
        self._is_text = bool(rest)
        return rest
