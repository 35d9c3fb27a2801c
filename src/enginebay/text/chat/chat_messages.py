"""Validates chat messages and converts them from OpenAI's form to what chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from enginebay.errors import InvalidRequest, Unsupported
from enginebay.text.reasoning.reasoning_history import read_thought
from enginebay.util.text_format import find_nearest

# Roles that published chat templates know. Any other is a typo, which the model would answer with nonsense.
ROLES = (
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
    "ipython",
    "observation",
    "document",
    "documents",
    "context",
    "control",
    "thought",
    "model",
)


def normalize_messages(
    messages: Sequence[Mapping[str, Any]], keep_parts: bool, supports_developer: bool = True
) -> list[dict[str, Any]]:
    """Return the messages in the form that templates take. Raises `InvalidRequest` or `Unsupported`.

    `keep_parts` keeps a list of text parts as a list instead of joining it. Without `supports_developer`, developer
    messages become system messages.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise _invalid_messages("messages must be a list", 'for example [{"role": "user", "content": "hi"}]')
    if not messages:
        raise _invalid_messages("messages is empty", "send at least one message")
    normalized = [_normalize_message(message, number, keep_parts) for number, message in enumerate(messages)]
    for message in normalized:
        if message["role"] == "developer" and not supports_developer:
            message["role"] = "system"
    return normalized


def _invalid_messages(problem: str, hint: str = "") -> InvalidRequest:
    return InvalidRequest(problem, hint, param="messages")


def _normalize_message(message: Any, number: int, parts: bool) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(message, Mapping):
        raise _invalid_messages(f"{where} is not an object", "a message has a role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        near = find_nearest(str(role), ROLES)
        raise _invalid_messages(
            f"{where} has an unknown role: {repr(role)[:60]}",
            f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(ROLES)}",
        )
    normalized = dict(message)
    normalized["content"] = _normalize_content(
        message.get("content"), where, parts, optional=bool(message.get("tool_calls"))
    )
    if not isinstance(message.get("tool_call_id"), (str, type(None))):
        raise _invalid_messages(f"{where}.tool_call_id is not a string")
    if role == "assistant":
        read_thought(message, where)  # raises if it is no text
    if normalized.get("tool_calls"):
        normalized["tool_calls"] = _normalize_tool_calls(normalized["tool_calls"], where)
    return normalized


def _normalize_content(content: Any, where: str, parts: bool, optional: bool) -> str | list[dict[str, Any]]:
    if content is None and optional:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        texts = [_extract_text(part, f"{where}.content[{number}]") for number, part in enumerate(content)]
        return [{"type": "text", "text": text} for text in texts] if parts else "\n".join(texts)
    raise _invalid_messages(f"{where} has no content", "content is a string or a list of text parts")


def _extract_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    if kind not in ("text", "refusal") and isinstance(kind, str):
        raise Unsupported(f"{where} has the type {kind!r}", "only text parts are supported", param="messages")
    text = part.get(kind) if isinstance(part, Mapping) and isinstance(kind, str) else None
    if not isinstance(text, str):
        raise _invalid_messages(f"{where} has no text", 'a part is {"type": "text", "text": "…"}')
    return text


def _normalize_tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Parse arguments from JSON text (OpenAI) to objects (templates). Invalid JSON stays text."""
    if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
        raise _invalid_messages(f"{where}.tool_calls must be a list of objects")
    for number, call in enumerate(calls):
        _check_tool_call(call, f"{where}.tool_calls[{number}]")
    return [_normalize_tool_call(call) for call in calls]


def _check_tool_call(call: Mapping[str, Any], where: str) -> None:
    """Templates would fail on other types, or write them into the prompt."""
    function = call.get("function")
    if call.get("type") not in (None, "function"):
        raise _invalid_messages(f"{where}.type is not function")
    if not isinstance(function, Mapping):
        raise _invalid_messages(f"{where} has no function", "a function has a name and arguments")
    if not isinstance(call.get("id"), (str, type(None))):
        raise _invalid_messages(f"{where}.id is not a string")
    if not isinstance(function.get("name"), str):
        raise _invalid_messages(f"{where}.function has no name")
    if not isinstance(function.get("arguments"), (str, Mapping, type(None))):
        raise _invalid_messages(f"{where}.function.arguments is neither JSON text nor an object")


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _normalize_tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            parsed = json.loads(arguments, parse_constant=_reject_constant) if arguments.strip() else {}
            json.dumps(parsed, ensure_ascii=False).encode()  # fails for lone surrogates
            arguments = parsed
    return {**call, "function": {**function, "arguments": arguments}}
