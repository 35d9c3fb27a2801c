"""Estimates token counts from text where the engine reports none. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.contract import GenerateRequest

_CHARS_PER_TOKEN = 4


def estimate_prompt_tokens(request: GenerateRequest) -> int:
    """Count the token ids, or estimate from the text of the prompt and its tools."""
    if request.token_ids is not None:
        return len(request.token_ids)
    return max(1, _count_chars((request.text, request.messages, request.extras)) // _CHARS_PER_TOKEN)


def estimate_completion_tokens(pieces: int, chars: int) -> int:
    """Estimate the tokens of a completion that arrived in pieces of at least one token each."""
    return max(pieces, chars // _CHARS_PER_TOKEN)


def _count_chars(value: Any) -> int:
    """Count the characters of all texts in a value, without data URLs of images."""
    chars, pending = 0, [value]
    while pending:  # not recursive: clients control the depth
        item = pending.pop()
        if isinstance(item, str) and not item.startswith("data:"):
            chars += len(item)
        elif isinstance(item, (list, tuple)):
            pending += item
        elif isinstance(item, Mapping):
            pending += item.values()
    return chars
