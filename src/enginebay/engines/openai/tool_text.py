"""Tool calls that come as fields, written as the text of a model that writes them the Hermes way. Pure.

The server parses that text again with its own parser; so there is one path for tool calls, whoever made them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from enginebay.engines.openai.http import Garbled
from enginebay.text.tools.scan import SPACE, ValueScanner

_MOST_HELD = 1 << 22  # characters of calls that must wait for an earlier one
_MOST_CALLS = 1024


class _Call:
    """One call: what came of it, and how much of that is written."""

    __slots__ = ("_nested", "_scanner", "id", "name", "opened", "pieces", "written")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []  # of the arguments, not yet written
        self.opened = False
        self.written = False  # some of the arguments
        self._nested = False  # its arguments have an end that can be seen
        self._scanner = ValueScanner()

    @property
    def complete(self) -> bool:
        """Its arguments are a whole value: what now comes for another call means that this one is over."""
        return self._scanner.done

    def add(self, fragment: str) -> None:
        if self.complete:
            if fragment.strip(SPACE):
                raise Garbled("a tool call that goes on behind its end")
            return
        if not (self.written or self.pieces):
            fragment = fragment.lstrip(SPACE)
            self._nested = fragment[:1] in ("{", "[", '"')
        if fragment:
            end = self._scanner.advance(fragment, 0)
            if self.complete and fragment[end:].strip(SPACE):
                raise Garbled("a tool call that goes on behind its end")
            self.pieces.append(fragment)

    def text(self) -> str:
        """What can be written by now."""
        if not self.name:
            return ""
        out = [] if self.opened else [f'<tool_call>\n{{"name": {json.dumps(self.name)}, "arguments": ']
        out += self.pieces
        self.opened = True
        self.written |= bool(self.pieces)
        self.pieces = []
        return "".join(out)

    def closing(self) -> str:
        """Nothing where the arguments were cut off: they must not look whole."""
        if self._nested and not self.complete:
            return ""
        return ("" if self.written else "{}") + "}\n</tool_call>"


class ToolText:
    """The calls of one choice. One is written as it streams; those that come meanwhile wait for it."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._places: dict[int, _Call] = {}  # by the server's index
        self._current = 0  # in the list

    def feed(self, deltas: Any) -> str:
        """The text for some fragments of calls. Raises `Garbled`."""
        if not isinstance(deltas, list):
            raise Garbled("tool calls that are no list")
        for delta in deltas:
            self._take(delta)
        return self._write()

    def end(self) -> str:
        """The choice is finished: so are its calls, in order."""
        text = self._write()
        for call in self._calls[self._current :]:
            if not call.name:
                raise Garbled("a tool call without a name")
            text += call.text() + call.closing()
            self._current += 1
            if self._current < len(self._calls):
                text += "\n"
        return text

    def _take(self, delta: Any) -> None:
        if not isinstance(delta, Mapping):
            raise Garbled("a tool call that is no object")
        function = delta.get("function") or {}
        named, fragment = function.get("name"), function.get("arguments")
        if isinstance(fragment, Mapping):  # some servers send them parsed
            fragment = json.dumps(fragment, ensure_ascii=False)
        if not isinstance(named, str | None) or not isinstance(fragment, str | None):
            raise Garbled("a tool call whose name or arguments are no text")
        call = self._call(delta.get("index"), str(delta.get("id") or ""), bool(named))
        call.name = call.name or named or ""
        call.add(fragment or "")

    def _call(self, index: Any, known_as: str, begins: bool) -> _Call:
        """The call that a fragment belongs to, by index; where there is none, or it is always the same, by id."""
        if isinstance(index, int):
            call = self._places.get(index)
            if call is not None and known_as and call.id and known_as != call.id:
                call = None
        else:
            by_id = next((one for one in self._calls if known_as and one.id == known_as), None)
            call = by_id or (None if begins or not self._calls else self._calls[-1])
        if call is None:
            call = _Call()
            self._calls.append(call)
            if isinstance(index, int):
                self._places[index] = call
        call.id = call.id or known_as
        return call

    def _write(self) -> str:
        text = ""
        while self._current < len(self._calls):
            call = self._calls[self._current]
            text += call.text()
            if not (call.complete and self._current + 1 < len(self._calls)):
                break
            text += call.closing() + "\n"
            self._current += 1
        waiting = self._calls[self._current :]
        if len(self._calls) > _MOST_CALLS or sum(len(piece) for call in waiting for piece in call.pieces) > _MOST_HELD:
            raise Garbled("tool calls beyond all measure")
        return text
