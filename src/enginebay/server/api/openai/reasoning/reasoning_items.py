"""Reads the reasoning of a request to /v1/responses: items of earlier turns, and the field `reasoning`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.errors import InvalidRequest
from enginebay.server.api.fields.unknown_fields import note_unknown_keys
from enginebay.server.api.openai.encoders.responses_output import decrypt_thought
from enginebay.server.api.openai.reasoning.reasoning_switches import ThinkingFields
from enginebay.server.api.openai.schemas import ResponsesBody

_SUMMARY_FIELDS = ("summary", "generate_summary")
_PART_TYPES = {"content": "reasoning_text", "summary": "summary_text"}


def read_thinking_fields(body: ResponsesBody) -> ThinkingFields:
    effort = (body.reasoning or {}).get("effort")
    if not isinstance(effort, (str, type(None))):
        raise InvalidRequest("reasoning.effort is not a string", param="reasoning")
    return ThinkingFields(
        effort, body.enable_thinking, body.thinking, body.max_reasoning_tokens, body.chat_template_kwargs or {},
        effort_param="reasoning.effort",
    )  # fmt: skip


def list_ignored_reasoning(body: ResponsesBody, *, refuse_unknown: bool = False) -> dict[str, str]:
    """Return the fields of `reasoning` that cannot change the response: why.

    Raise `InvalidRequest` for a misspelling; with `refuse_unknown`, for any unknown field.
    """
    fields = body.reasoning or {}
    given = [f"reasoning.{name}" for name in _SUMMARY_FIELDS if fields.get(name) is not None]
    ignored = dict.fromkeys(given, "thoughts are returned in full, not as a summary")
    note_unknown_keys(fields, ("effort", *_SUMMARY_FIELDS), "reasoning", None if refuse_unknown else ignored)
    return ignored


def add_reasoning_item(item: Mapping[str, Any], where: str, messages: list[dict[str, Any]]) -> None:
    """Add a thought. The message or calls that follow it belong to the same turn."""
    content, summary = _read_parts(item, "content", where), _read_parts(item, "summary", where)
    thought = content or summary
    encrypted = item.get("encrypted_content")
    if not isinstance(encrypted, (str, type(None))):
        raise _make_error(f"{where}.encrypted_content is not a string")
    thought = thought or decrypt_thought(encrypted or "")
    if not thought:
        return
    if messages and _is_thought(messages[-1]):
        messages[-1]["reasoning_content"] += f"\n\n{thought}"
    else:
        messages.append({"role": "assistant", "content": "", "reasoning_content": thought})


def _is_thought(message: Mapping[str, Any]) -> bool:
    return "reasoning_content" in message and not message["content"] and not message.get("tool_calls")


def add_assistant_text(text: str, messages: list[dict[str, Any]]) -> None:
    """Add the text of an assistant message, to its thought if that is before it."""
    if messages and _is_thought(messages[-1]):
        messages[-1]["content"] = text
    else:
        messages.append({"role": "assistant", "content": text})


def drop_lone_thoughts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop thoughts that no message or call followed: a turn that was cut off."""
    return [message for message in messages if not _is_thought(message)]


def _read_parts(item: Mapping[str, Any], name: str, where: str) -> str:
    parts = item.get(name)
    if parts is None:
        return ""
    if not isinstance(parts, list):
        raise _make_error(f"{where}.{name} is not a list")
    texts = []
    for number, part in enumerate(parts):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == _PART_TYPES[name] else None
        if not isinstance(text, str):
            raise _make_error(f"{where}.{name}[{number}] is not a {_PART_TYPES[name]}")
        texts.append(text)
    return "\n\n".join(filter(None, texts))


def _make_error(message: str) -> InvalidRequest:
    return InvalidRequest(message, "send the item back unchanged", param="input")
