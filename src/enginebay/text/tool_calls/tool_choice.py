"""Validates a request's `tools` and `tool_choice`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from enginebay.errors import InvalidRequest

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MODES: tuple[Literal["none", "auto", "required"], ...] = ("none", "auto", "required")
_NAMED_EXAMPLE = '{"type": "function", "function": {"name": "…"}}'


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """How an answer may use the tools. `name`: the tool to call; `allowed`: the tools it may call, None for all."""

    mode: Literal["none", "auto", "required", "named"]
    name: str | None = None
    allowed: frozenset[str] | None = None


def parse_tool_choice(tools: Any, choice: Any) -> ToolChoice:
    """Validate and parse both fields. Without tools (None or an empty list), only auto and none are allowed."""
    names = _validate_tools(tools)
    if choice is None or choice == "auto":
        return ToolChoice("auto" if names else "none")
    if choice == "none":
        return ToolChoice("none")
    if isinstance(choice, str) and choice in _MODES:
        if not names:
            raise _invalid_tool_choice(
                f"tool_choice is {choice!r} but there are no tools", "add tools, or remove tool_choice"
            )
        return ToolChoice("required")
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        return _parse_allowed_tools(choice.get("allowed_tools"), names)
    return ToolChoice(
        "named",
        _parse_named_tool(
            choice, names, "tool_choice", f"use auto, none, required, {_NAMED_EXAMPLE}, or allowed_tools"
        ),
    )


def _validate_tools(tools: Any) -> dict[str, None]:
    """Validate the tools. Return their names in order."""
    if tools is None:
        return {}
    if not isinstance(tools, (list, tuple)):
        raise _invalid_tools(
            "tools must be a list", 'for example [{"type": "function", "function": {"name": "get_time"}}]'
        )
    names: dict[str, None] = {}
    for number, tool in enumerate(tools):
        name = _validate_tool(tool, f"tools[{number}]")
        if name in names:
            raise _invalid_tools(f"tools[{number}] has the duplicate name {name!r}", "give each tool a unique name")
        names[name] = None
    return names


def _validate_tool(tool: Any, where: str) -> str:
    if not isinstance(tool, Mapping):
        raise _invalid_tools(f"{where} is not an object", 'a tool is {"type": "function", "function": {…}}')
    if tool.get("type") != "function":
        raise _invalid_tools(f"{where}.type is {_shorten_repr(tool.get('type'))}", 'only "function" is supported')
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise _invalid_tools(f"{where} has no function", 'a tool is {"type": "function", "function": {…}}')
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _invalid_tools(
            f"{where}.function.name is {_shorten_repr(name)}",
            "use 1 to 128 letters, digits, underscores or dashes",
        )
    if not isinstance(function.get("description", ""), (str, type(None))):
        raise _invalid_tools(f"{where}.function.description is not a string", "use a string, or remove it")
    if not isinstance(function.get("strict"), (bool, type(None))):
        raise _invalid_tools(f"{where}.function.strict is {_shorten_repr(function['strict'])}", "use true or false")
    _check_parameters(function.get("parameters"), f"{where}.function.parameters")
    return name


def _check_parameters(parameters: Any, where: str) -> None:
    if parameters is None:
        return
    hint = 'use a JSON schema like {"type": "object", "properties": {…}}, or remove it'
    if not isinstance(parameters, Mapping):
        raise _invalid_tools(f"{where} is not an object", hint)
    if parameters.get("type", "object") != "object":
        raise _invalid_tools(f"{where}.type is {_shorten_repr(parameters['type'])}", hint)
    if not isinstance(parameters.get("properties", {}), Mapping):
        raise _invalid_tools(f"{where}.properties is not an object", hint)


def _parse_allowed_tools(value: Any, names: Mapping[str, None]) -> ToolChoice:
    """Parse the allowed tools, and whether one of them must be called."""
    mode, tools = (value.get("mode"), value.get("tools")) if isinstance(value, Mapping) else (None, None)
    if mode not in ("auto", "required"):
        raise _invalid_tool_choice(f"allowed_tools.mode is {_shorten_repr(mode)}", "use auto or required")
    if not isinstance(tools, (list, tuple)) or not tools:
        raise _invalid_tool_choice("allowed_tools has no tools", f"use tools: [{_NAMED_EXAMPLE}]")
    allowed = [
        _parse_named_tool(tool, names, f"allowed_tools.tools[{number}]", f"use {_NAMED_EXAMPLE}")
        for number, tool in enumerate(tools)
    ]
    return ToolChoice("auto" if mode == "auto" else "required", allowed=frozenset(allowed))


def _parse_named_tool(tool: Any, names: Mapping[str, None], where: str, hint: str) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise _invalid_tool_choice(f"{where} is invalid", hint)
    if name not in names:
        listed = ", ".join(list(names)[:8]) + (", …" if len(names) > 8 else "")
        raise _invalid_tool_choice(
            f"{where} names {_shorten_repr(name)}, which is not in tools", f"tools: {listed or 'none'}"
        )
    return name


def _shorten_repr(value: Any) -> str:
    """Return a value's repr for a message, shortened."""
    if value is None:
        return "missing"
    text = repr(value) if isinstance(value, (str, int, float, bool)) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:79] + "…"


def _invalid_tools(problem: str, hint: str) -> InvalidRequest:
    return InvalidRequest(problem, hint, param="tools")


def _invalid_tool_choice(problem: str, hint: str) -> InvalidRequest:
    return InvalidRequest(problem, hint, param="tool_choice")
