"""Parser of calls written as JSON objects, alone or in arrays, with or without markers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from enginebay.text.output_events import OutputEvent
from enginebay.text.tool_calls.call_object import CallObjectReader
from enginebay.text.tool_calls.call_parser import StreamingCallParser
from enginebay.text.tool_calls.json_scanner import WHITESPACE, begins_with, skip_whitespace
from enginebay.text.tool_calls.opening_finder import CODE_FENCE, CallOpeningFinder

_FENCE_WORDS = ("", "json", "JSON", "tool_call", "tool_code")


@dataclass(frozen=True)
class JsonCallSyntax:
    """How a format marks its JSON calls."""

    marker: str = ""  # before calls
    closer: str = ""  # after calls, optional
    separators: str = ""  # characters between objects outside an array
    bare: bool = False  # also accepts unmarked calls of known tools at the start of a line
    fence: bool = False  # ... or inside ``` fences

    @cached_property
    def finder(self) -> CallOpeningFinder:
        return CallOpeningFinder((self.marker,) if self.marker else (), self.bare)


def get_tool_names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of a request's tools."""
    return frozenset(tool["function"]["name"] for tool in tools)


class JsonCallParser(StreamingCallParser):
    """Parses every format whose calls are JSON objects with a name and arguments."""

    def __init__(self, syntax: JsonCallSyntax, tools: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(syntax.finder)
        self._syntax = syntax
        self._known_names = get_tool_names(tools)
        self._names: Collection[str] | None = None  # accepted in the current run of calls; None: all
        self._closer = ""
        self._in_array = False
        self._object = CallObjectReader(0, None)

    def _read_opening(self, out: list[OutputEvent]) -> bool:
        marked = self._opening == self._syntax.marker
        self._names = None if marked else self._known_names
        self._closer = self._syntax.closer if marked else ""
        self._in_array = False
        at = self._opening_length
        if self._opening == CODE_FENCE:
            inside = self._find_fence_body() if self._syntax.fence else -1
            if inside < 0:
                return self._reject(out)
            if not inside:
                return False
            at, self._closer = inside, CODE_FENCE
        elif not marked:
            at -= 1  # the bracket is the opening and part of the JSON
        return self._open_value(skip_whitespace(self._buffer, at), out)

    def _find_fence_body(self) -> int:
        """Return where the line after an opening fence starts; 0 if incomplete, -1 if the fence holds no calls."""
        word, newline, _ = self._buffer[self._opening_length :].partition("\n")
        known = word.rstrip(WHITESPACE)
        if newline:
            return self._opening_length + len(word) + 1 if known in _FENCE_WORDS else -1
        return 0 if any(full.startswith(known) for full in _FENCE_WORDS) else -1

    def _open_value(self, at: int, out: list[OutputEvent]) -> bool:
        """Read the start of an object, or of an array whose first element is one."""
        text = self._buffer
        if text[at : at + 1] == "[":
            self._in_array = True
            at = skip_whitespace(text, at + 1)
        if at == len(text):
            return False
        if text[at] != "{":
            return self._reject(out)
        self._open_object(at)
        return True

    def _open_object(self, at: int) -> None:
        self._position = at
        self._object = CallObjectReader(self._index, self._names)
        self._state = self._read_object

    def _read_object(self, out: list[OutputEvent]) -> bool:
        call = self._object
        self._position = call.advance(self._buffer, self._position, out)
        if call.started:
            self._commit_call()
        if not call.done and not call.broken:
            return False
        if not call.started:
            return self._reject(out)
        self._index += 1
        self._state = self._read_after_object
        return True

    def _read_after_object(self, out: list[OutputEvent]) -> bool:
        self._skip_gap()
        text = self._buffer
        if not text:
            return False
        if text[0] == "]" and self._in_array:
            self._in_array = False
            self._skip_closer("]")
            return True
        if text[0] == "{":
            self._opening_length = 1
            self._open_object(0)
            return True
        if text[0] in ("," if self._in_array else self._syntax.separators):
            return self._read_after_separator()
        closes = begins_with(text, 0, self._closer) if self._closer else False
        if closes is None:
            return False
        if closes:
            self._skip_closer(self._closer)
        return self._finish_call()

    def _read_after_separator(self) -> bool:
        at = skip_whitespace(self._buffer, 1)
        if at == len(self._buffer):
            return False
        if self._buffer[at] != "{":
            return self._finish_call()
        self._opening_length = 1
        self._open_object(at)
        return True

    def _finish_incomplete(self, out: list[OutputEvent]) -> None:
        if self._state == self._read_object and self._object.started:
            self._buffer = ""
            self._index += 1
            self._finish_call()
        elif self._state == self._read_after_object:
            self._finish_call()
        else:
            self._reject(out)
