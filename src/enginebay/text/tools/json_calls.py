"""Calls written as JSON objects, alone or in arrays, with or without markers around them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from enginebay.text.tools.base import CallParser
from enginebay.text.tools.call_object import CallObject
from enginebay.text.tools.events import ToolEvent
from enginebay.text.tools.finder import FENCE, OpeningFinder
from enginebay.text.tools.scan import SPACE, begins_with, skip_space

_FENCE_WORDS = ("", "json", "JSON", "tool_call", "tool_code")


@dataclass(frozen=True)
class JsonSyntax:
    """How a format dresses its JSON."""

    marker: str = ""  # stands in front of calls
    closer: str = ""  # may stand behind them
    separators: str = ""  # characters that may stand between objects outside an array
    bare: bool = False  # calls may also stand at the start of a line with no marker, but then only those of known tools
    fence: bool = False  # ... or inside ``` fences

    @cached_property
    def finder(self) -> OpeningFinder:
        return OpeningFinder((self.marker,) if self.marker else (), self.bare)


def tool_names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The names of the tools of a request."""
    return frozenset(tool["function"]["name"] for tool in tools)


class JsonCalls(CallParser):
    """Parser of every format whose calls are JSON objects with a name and arguments."""

    def __init__(self, syntax: JsonSyntax, tools: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(syntax.finder)
        self._syntax = syntax
        self._known = tool_names(tools)
        self._names: Collection[str] | None = None  # those that count in the present run of calls; None: all
        self._closer = ""
        self._in_array = False
        self._object = CallObject(0, None)

    def _opened(self, out: list[ToolEvent]) -> bool:
        marked = self._opening == self._syntax.marker
        self._names = None if marked else self._known
        self._closer = self._syntax.closer if marked else ""
        self._in_array = False
        at = self._lead
        if self._opening == FENCE:
            inside = self._inside_fence() if self._syntax.fence else -1
            if inside < 0:
                return self._reject(out)
            if not inside:
                return False
            at, self._closer = inside, FENCE
        elif not marked:
            at -= 1  # the bracket is the opening and part of the JSON
        return self._open_value(skip_space(self._buffer, at), out)

    def _inside_fence(self) -> int:
        """Where the line behind an opening fence begins; 0 if it is not there yet, -1 if this is no fence for calls."""
        word, newline, _ = self._buffer[self._lead :].partition("\n")
        known = word.rstrip(SPACE)
        if newline:
            return self._lead + len(word) + 1 if known in _FENCE_WORDS else -1
        return 0 if any(full.startswith(known) for full in _FENCE_WORDS) else -1

    def _open_value(self, at: int, out: list[ToolEvent]) -> bool:
        """At the first character of an object, or of an array whose first element is one."""
        text = self._buffer
        if text[at : at + 1] == "[":
            self._in_array = True
            at = skip_space(text, at + 1)
        if at == len(text):
            return False
        if text[at] != "{":
            return self._reject(out)
        self._open_object(at)
        return True

    def _open_object(self, at: int) -> None:
        self._at = at
        self._object = CallObject(self._index, self._names)
        self._state = self._in_object

    def _in_object(self, out: list[ToolEvent]) -> bool:
        call = self._object
        self._at = call.advance(self._buffer, self._at, out)
        if call.started:
            self._started()
        if not call.done and not call.broken:
            return False
        if not call.started:
            return self._reject(out)
        self._index += 1
        self._state = self._after_object
        return True

    def _after_object(self, out: list[ToolEvent]) -> bool:
        self._skip_gap()
        text = self._buffer
        if not text:
            return False
        if text[0] == "]" and self._in_array:
            self._in_array = False
            self._skip_closer("]")
            return True
        if text[0] == "{":
            self._lead = 1
            self._open_object(0)
            return True
        if text[0] in ("," if self._in_array else self._syntax.separators):
            return self._after_separator()
        closes = begins_with(text, 0, self._closer) if self._closer else False
        if closes is None:
            return False
        if closes:
            self._skip_closer(self._closer)
        return self._finished()

    def _after_separator(self) -> bool:
        at = skip_space(self._buffer, 1)
        if at == len(self._buffer):
            return False
        if self._buffer[at] != "{":
            return self._finished()
        self._lead = 1
        self._open_object(at)
        return True

    def _give_up(self, out: list[ToolEvent]) -> None:
        if self._state == self._in_object and self._object.started:
            self._buffer = ""
            self._index += 1
            self._finished()
        elif self._state == self._after_object:
            self._finished()
        else:
            self._reject(out)
