"""Puts the thoughts of earlier turns where a chat template reads them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any

from enginebay.errors import InvalidRequest

REASONING_KEYS = ("reasoning_content", "reasoning")  # of an assistant message, in requests


class ReasoningSlot(StrEnum):
    """Where a template reads a thought: a field of the message, a part of its content, or tags in its text."""

    REASONING_CONTENT = "reasoning_content"
    REASONING = "reasoning"
    PART = "part"
    THINKING = "thinking"
    TAGS = "tags"
    NONE = "none"


@lru_cache(maxsize=64)
def find_reasoning_slot(template: str | None) -> ReasoningSlot:
    """Return where a template reads thoughts. Some templates that read them drop those of earlier turns."""
    if not template:
        return ReasoningSlot.NONE
    from enginebay.text.chat.template_sandbox import TemplateNames

    names = TemplateNames.read(template)
    for slot in (ReasoningSlot.REASONING_CONTENT, ReasoningSlot.REASONING):
        if slot in names.fields:
            return slot
    if "thinking" in names.types:
        return ReasoningSlot.PART
    if "thinking" in names.fields:
        return ReasoningSlot.THINKING
    if any(f"split({quote}</think>{quote}" in template for quote in "'\""):
        return ReasoningSlot.TAGS  # the template keeps or drops what is before the tag
    return ReasoningSlot.NONE


def read_thought(message: Any, where: str = "messages") -> str:
    """Return the thought of an assistant message, or "". Raises `InvalidRequest`."""
    for key in REASONING_KEYS:
        thought = message.get(key)
        if not isinstance(thought, (str, type(None))):
            raise InvalidRequest(f"{where}.{key} is not a string", "send the thought as text", param="messages")
        if thought:
            return thought
    return ""


def place_thoughts(messages: Sequence[dict[str, Any]], template: str) -> None:
    """Move the thoughts of normalized assistant messages to where the template reads them."""
    for number, message in enumerate(messages):
        if message["role"] == "assistant" and any(key in message for key in REASONING_KEYS):
            thought = read_thought(message, f"messages[{number}]")
            for key in REASONING_KEYS:
                message.pop(key, None)
            if thought:
                _place_thought(message, thought, find_reasoning_slot(template))


def _place_thought(message: dict[str, Any], thought: str, slot: ReasoningSlot) -> None:
    content = message["content"]
    if slot in (ReasoningSlot.REASONING_CONTENT, ReasoningSlot.REASONING):
        message[slot.value] = thought
    elif slot is ReasoningSlot.THINKING and message.get("tool_calls") and content and isinstance(content, str):
        message["thinking"], message["content"] = f"{thought}\n\n{content}", ""  # gpt-oss takes only one of them
    elif slot is ReasoningSlot.THINKING:
        message["thinking"] = thought
    elif slot is ReasoningSlot.PART:
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        message["content"] = [{"type": "thinking", "thinking": thought}, *(part for part in parts if part["text"])]
    elif slot is ReasoningSlot.TAGS and not message.get("tool_calls") and isinstance(content, str):
        message["content"] = f"<think>\n{thought}\n</think>\n\n{content}"
