"""Custom and namespace tools as functions, which is what chat templates know. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from enginebay.errors import InvalidRequest

DEFAULT_NAMESPACE = "functions"  # its tools are called by their own names
INPUT_ARGUMENT = "input"
_MAX_NAME_CHARS = 64
_UNSAFE = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A tool as the client named it."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(slots=True)
class ToolExpansion:
    """A request's tools as function tools. Those of other types are left for the caller."""

    tools: list[Mapping[str, Any]] = field(default_factory=list)
    called: dict[str, CalledTool] = field(default_factory=dict)  # by the function's name
    notes: dict[str, str] = field(default_factory=dict)  # for x-enginebay-translated

    def find(self, function_name: str) -> CalledTool:
        return self.called.get(function_name) or CalledTool(function_name)


def join_tool_name(namespace: str | None, name: str) -> str:
    """Return the function's name of a tool in a namespace."""
    if not namespace or namespace == DEFAULT_NAMESPACE:
        return name
    joined = _UNSAFE.sub("_", f"{namespace}{'' if namespace.endswith('__') else '__'}{name}")
    if len(joined) <= _MAX_NAME_CHARS:
        return joined
    digest = hashlib.sha256(f"{namespace}\0{name}".encode()).hexdigest()[:8]
    return f"{joined[: _MAX_NAME_CHARS - 9]}_{digest}"


def expand_tools(tools: Sequence[Mapping[str, Any]] | None) -> ToolExpansion:
    expansion = ToolExpansion()
    for tool, namespace, where in _list_tools(tools or ()):
        name = tool.get("name")
        if tool.get("type") not in ("function", "custom") or not isinstance(name, str):
            expansion.tools.append(tool)
            continue
        function_name = join_tool_name(namespace, name)
        is_custom = tool["type"] == "custom"
        if is_custom or namespace is not None:
            expansion.called[function_name] = CalledTool(name, namespace, is_custom)
        function = _to_function(tool, where, expansion.notes) if is_custom else tool
        expansion.tools.append({**function, "name": function_name})
    return expansion


def _list_tools(tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str | None, str]]:
    """Yield each tool with its namespace and where it is in the request."""
    for number, tool in enumerate(tools):
        where = f"tools[{number}]"
        if tool.get("type") != "namespace":
            yield tool, None, where
            continue
        name, inner = tool.get("name"), tool.get("tools")
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"{where}.name is missing", "name the namespace", param="tools")
        if not isinstance(inner, list) or not all(isinstance(one, Mapping) for one in inner):
            raise InvalidRequest(f"{where}.tools is not a list of tools", "send a list", param="tools")
        for inner_number, inner_tool in enumerate(inner):
            inner_where = f"{where}.tools[{inner_number}]"
            if inner_tool.get("type") not in ("function", "custom"):
                raise InvalidRequest(
                    f"{inner_where} is not a function or a custom tool", "a namespace has only these", param="tools"
                )
            yield {key: value for key, value in inner_tool.items() if key != "defer_loading"}, name, inner_where


def _to_function(tool: Mapping[str, Any], where: str, notes: dict[str, str]) -> dict[str, Any]:
    """Return a custom tool as a function with one text argument."""
    argument: dict[str, Any] = {"type": "string"}
    description = tool.get("description") or ""
    syntax, definition = _read_format(tool.get("format"), where)
    if syntax == "regex":
        argument["pattern"] = f"^(?:{definition})$"
        notes[f"{where}.format"] = "the regex is enforced only if the tool is required"
    elif syntax:
        notes[f"{where}.format"] = "the grammar is shown to the model, not enforced"
        description = (
            f"{description}\n\nThe argument {INPUT_ARGUMENT} follows this {syntax} grammar:\n{definition}".strip()
        )
    parameters = {
        "type": "object", "properties": {INPUT_ARGUMENT: argument}, "required": [INPUT_ARGUMENT], "additionalProperties": False,
    }  # fmt: skip
    return {"type": "function", "description": description, "parameters": parameters}


def _read_format(wanted: Any, where: str) -> tuple[str, str]:
    """Return syntax and definition of the grammar; empty for text."""
    if wanted is None or (isinstance(wanted, Mapping) and wanted.get("type") == "text"):
        return "", ""
    if not isinstance(wanted, Mapping) or wanted.get("type") != "grammar":
        raise InvalidRequest(f"{where}.format is unknown", "use text or grammar", param="tools")
    syntax, definition = wanted.get("syntax"), wanted.get("definition")
    if syntax not in ("lark", "regex") or not isinstance(definition, str):
        raise InvalidRequest(
            f"{where}.format needs a syntax and a definition", "use the syntax lark or regex", param="tools"
        )
    return syntax, definition


def to_custom_arguments(text: str) -> str:
    """Return the arguments of the function that stands for a custom tool."""
    return json.dumps({INPUT_ARGUMENT: text}, ensure_ascii=False)


def read_custom_input(arguments: str) -> str:
    """Return the text for a custom tool, from a call's arguments. What is not such an object is the text itself."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(parsed, str):
        return parsed
    text = parsed.get(INPUT_ARGUMENT) if isinstance(parsed, dict) else None
    return text if isinstance(text, str) else arguments
