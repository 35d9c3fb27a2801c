"""What a request cost, where whoever counts its tokens has not told: about four characters a token. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.contract import GenerateRequest

_CHARS_PER_TOKEN = 4  # of a token


def estimate_prompt_tokens(request: GenerateRequest) -> int:
    """Known where the request has token ids; else by its text, and that of its tools."""
    if request.token_ids is not None:
        return len(request.token_ids)
    return max(1, _count_chars((request.text, request.messages, request.extras)) // _CHARS_PER_TOKEN)


def estimate_completion_tokens(pieces: int, chars: int) -> int:
    """Of an answer that came in so many pieces, each at least one token."""
    return max(pieces, chars // _CHARS_PER_TOKEN)


def _count_chars(value: Any) -> int:
    """All texts within a value; what a picture costs is not in the length of its bytes."""
    found, left = 0, [value]
    while left:  # rather than a call for each level: clients decide how many there are
        one = left.pop()
        if isinstance(one, str) and not one.startswith("data:"):
            found += len(one)
        elif isinstance(one, (list, tuple)):
            left += one
        elif isinstance(one, Mapping):
            left += one.values()
    return found
