"""Converts one value of a Qwen3-Coder call. Strings stream; other types are emitted when complete."""

from __future__ import annotations

import json

from enginebay.text.tool_calls.schema_types import NULL_LITERALS, to_json

VALUE_END = "</parameter>"
_END_TAG_PREFIXES = tuple(VALUE_END[:size] for size in range(1, len(VALUE_END)))
_STRING_ONLY = frozenset(("string",))
_STRING_OR_NULL = frozenset(("string", "null"))


class QwenValueStream:
    """Converts the raw text before `</parameter>` to JSON. Line ends next to the tags are not part of the value."""

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types
        self._quoting = False  # the opening quote is emitted: this is a string, and it streams
        self._fresh = True  # nothing has been read

    def read(self, text: str) -> tuple[str, int, bool]:
        """Return the fragment for the client, the characters consumed, and whether `</parameter>` comes next."""
        end = text.find(VALUE_END)
        done = end >= 0
        at = self._skip_first_newline(text)
        if at < 0 and not done:
            return "", 0, False
        if done:
            value = _strip_last_newline(text[max(at, 0) : end])
            return (f'{_escape_json(value)}"' if self._quoting else to_json(value, self._types)), end, True
        # The line end before the tag belongs to the tag, so both wait.
        certain = _count_certain(text)
        if certain <= at or not self._can_stream(text[at:certain]):
            return "", 0, False
        fragment = ("" if self._quoting else '"') + _escape_json(text[at:certain])
        self._quoting, self._fresh = True, False
        return fragment, certain, False

    def finish_incomplete(self, text: str) -> str:
        """Return what was held back when the answer ends inside the value."""
        at = max(self._skip_first_newline(text), 0)
        if self._quoting or not self._types or self._types <= _STRING_OR_NULL:
            return ("" if self._quoting else '"') + _escape_json(text[at:])
        return text[at:]

    def _skip_first_newline(self, text: str) -> int:
        """Return where the value starts; -1 while the line end is incomplete."""
        if not self._fresh:
            return 0
        if text in ("", "\r"):
            return -1
        return 2 if text.startswith("\r\n") else 1 if text.startswith("\n") else 0

    def _can_stream(self, value: str) -> bool:
        if self._quoting or not self._types or self._types == _STRING_ONLY:
            return True
        stripped = value.strip()
        return self._types == _STRING_OR_NULL and not any(null.startswith(stripped) for null in NULL_LITERALS)


def _count_certain(text: str) -> int:
    """Return how many characters cannot belong to the end tag or its line end."""
    size = len(text)
    if text.endswith(_END_TAG_PREFIXES):
        size = min(size - len(start) for start in _END_TAG_PREFIXES if text.endswith(start))
    return len(_strip_last_newline(text[:size])) if text[:size].endswith("\n") else size - text[:size].endswith("\r")


def _strip_last_newline(text: str) -> str:
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def _escape_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
