"""Tool calls that come as fields, written as the text of a model that writes them the Hermes way. Pure.

The server parses that text again with its own parser; so there is one path for tool calls, whoever made them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from enginebay.engines.openai.http_response import MalformedResponse
from enginebay.text.tool_calls.json_scanner import WHITESPACE, JsonValueScanner

_MAX_WAITING_CHARS = 1 << 22  # characters of calls that must wait for an earlier one
_MAX_CALLS = 1024


class _ToolCall:
    """One call: what came of it, and how much of that is written."""

    __slots__ = ("_nested", "_scanner", "id", "name", "opened", "pending", "written")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.pending: list[str] = []  # of the arguments, not yet written
        self.opened = False
        self.written = False  # some of the arguments
        self._nested = False  # its arguments have an end that can be seen
        self._scanner = JsonValueScanner()

    @property
    def is_complete(self) -> bool:
        """Its arguments are a whole value: what now comes for another call means that this one is over."""
        return self._scanner.done

    def add_fragment(self, fragment: str) -> None:
        if self.is_complete:
            if fragment.strip(WHITESPACE):
                raise MalformedResponse("a tool call that goes on behind its end")
            return
        if not (self.written or self.pending):
            fragment = fragment.lstrip(WHITESPACE)
            self._nested = fragment[:1] in ("{", "[", '"')
        if fragment:
            end = self._scanner.advance(fragment, 0)
            if self.is_complete and fragment[end:].strip(WHITESPACE):
                raise MalformedResponse("a tool call that goes on behind its end")
            self.pending.append(fragment)

    def render_pending(self) -> str:
        """What can be written by now."""
        if not self.name:
            return ""
        out = [] if self.opened else [f'<tool_call>\n{{"name": {json.dumps(self.name)}, "arguments": ']
        out += self.pending
        self.opened = True
        self.written |= bool(self.pending)
        self.pending = []
        return "".join(out)

    def render_end(self) -> str:
        """Nothing where the arguments were cut off: they must not look whole."""
        if self._nested and not self.is_complete:
            return ""
        return ("" if self.written else "{}") + "}\n</tool_call>"


class ToolCallWriter:
    """The calls of one choice. One is written as it streams; those that come meanwhile wait for it."""

    def __init__(self) -> None:
        self._calls: list[_ToolCall] = []
        self._by_index: dict[int, _ToolCall] = {}  # by the server's index
        self._current = 0  # in the list

    def feed(self, deltas: Any) -> str:
        """The text for some fragments of calls. Raises `Garbled`."""
        if not isinstance(deltas, list):
            raise MalformedResponse("tool calls that are no list")
        for delta in deltas:
            self._add_delta(delta)
        return self._render_ready()

    def end(self) -> str:
        """The choice is finished: so are its calls, in order."""
        text = self._render_ready()
        for call in self._calls[self._current :]:
            if not call.name:
                raise MalformedResponse("a tool call without a name")
            text += call.render_pending() + call.render_end()
            self._current += 1
            if self._current < len(self._calls):
                text += "\n"
        return text

    def _add_delta(self, delta: Any) -> None:
        if not isinstance(delta, Mapping):
            raise MalformedResponse("a tool call that is no object")
        function = delta.get("function") or {}
        named, fragment = function.get("name"), function.get("arguments")
        if isinstance(fragment, Mapping):  # some servers send them parsed
            fragment = json.dumps(fragment, ensure_ascii=False)
        if not isinstance(named, str | None) or not isinstance(fragment, str | None):
            raise MalformedResponse("a tool call whose name or arguments are no text")
        call = self._find_call(delta.get("index"), str(delta.get("id") or ""), bool(named))
        call.name = call.name or named or ""
        call.add_fragment(fragment or "")

    def _find_call(self, index: Any, call_id: str, starts_call: bool) -> _ToolCall:
        """The call that a fragment belongs to, by index; where there is none, or it is always the same, by id."""
        if isinstance(index, int):
            call = self._by_index.get(index)
            if call is not None and call_id and call.id and call_id != call.id:
                call = None
        else:
            by_id = next((one for one in self._calls if call_id and one.id == call_id), None)
            call = by_id or (None if starts_call or not self._calls else self._calls[-1])
        if call is None:
            call = _ToolCall()
            self._calls.append(call)
            if isinstance(index, int):
                self._by_index[index] = call
        call.id = call.id or call_id
        return call

    def _render_ready(self) -> str:
        text = ""
        while self._current < len(self._calls):
            call = self._calls[self._current]
            text += call.render_pending()
            if not (call.is_complete and self._current + 1 < len(self._calls)):
                break
            text += call.render_end() + "\n"
            self._current += 1
        waiting = self._calls[self._current :]
        if (
            len(self._calls) > _MAX_CALLS
            or sum(len(piece) for call in waiting for piece in call.pending) > _MAX_WAITING_CHARS
        ):
            raise MalformedResponse("tool calls beyond all measure")
        return text
