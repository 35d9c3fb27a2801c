"""Convert tool call fields to Hermes-style text. Pure.

Enginebay's server parses that text again, so tool calls of all engines take the same path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from enginebay.engines.openai.http_response import MalformedResponse
from enginebay.text.tool_calls.json_scanner import WHITESPACE, JsonValueScanner

_MAX_WAITING_CHARS = 1 << 22  # of calls that wait for an earlier one
_MAX_CALLS = 1024


class _ToolCall:
    """One call: its fragments so far, and how much of them is written."""

    __slots__ = ("_nested", "_scanner", "id", "name", "opened", "pending", "written")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.pending: list[str] = []  # fragments of the arguments not yet written
        self.opened = False
        self.written = False  # part of the arguments
        self._nested = False  # the arguments have a visible end
        self._scanner = JsonValueScanner()

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are a complete value. The next fragment of another call then ends this one."""
        return self._scanner.done

    def add_fragment(self, fragment: str) -> None:
        if self.is_complete:
            if fragment.strip(WHITESPACE):
                raise MalformedResponse("a tool call that continues after its end")
            return
        if not (self.written or self.pending):
            fragment = fragment.lstrip(WHITESPACE)
            self._nested = fragment[:1] in ("{", "[", '"')
        if fragment:
            end = self._scanner.advance(fragment, 0)
            if self.is_complete and fragment[end:].strip(WHITESPACE):
                raise MalformedResponse("a tool call that continues after its end")
            self.pending.append(fragment)

    def render_pending(self) -> str:
        """Return what can be written so far."""
        if not self.name:
            return ""
        out = [] if self.opened else [f'<tool_call>\n{{"name": {json.dumps(self.name)}, "arguments": ']
        out += self.pending
        self.opened = True
        self.written |= bool(self.pending)
        self.pending = []
        return "".join(out)

    def render_end(self) -> str:
        """Return the end of the call; empty for truncated arguments, which must not look complete."""
        if self._nested and not self.is_complete:
            return ""
        return ("" if self.written else "{}") + "}\n</tool_call>"


class ToolCallWriter:
    """The calls of one choice. Writes one call as it streams; later calls wait for it."""

    def __init__(self) -> None:
        self._calls: list[_ToolCall] = []
        self._by_index: dict[int, _ToolCall] = {}
        self._current = 0  # index into the list

    def feed(self, deltas: Any) -> str:
        """Add fragments of calls and return their text. Raises `MalformedResponse`."""
        if not isinstance(deltas, list):
            raise MalformedResponse("tool calls that are not a list")
        for delta in deltas:
            self._add_delta(delta)
        return self._render_ready()

    def end(self) -> str:
        """Finish all calls in order and return the remaining text."""
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
            raise MalformedResponse("a tool call that is not an object")
        function = delta.get("function") or {}
        named, fragment = function.get("name"), function.get("arguments")
        if isinstance(fragment, Mapping):  # some servers send them parsed
            fragment = json.dumps(fragment, ensure_ascii=False)
        if not isinstance(named, str | None) or not isinstance(fragment, str | None):
            raise MalformedResponse("a tool call whose name or arguments are not strings")
        call = self._find_call(delta.get("index"), str(delta.get("id") or ""), bool(named))
        call.name = call.name or named or ""
        call.add_fragment(fragment or "")

    def _find_call(self, index: Any, call_id: str, starts_call: bool) -> _ToolCall:
        """Return the call of a fragment, by index, or by id if the index is missing or always the same."""
        if isinstance(index, int):
            call = self._by_index.get(index)
            if call is not None and call_id and call.id and call_id != call.id:
                call = None
        else:
            by_id = next((call for call in self._calls if call_id and call.id == call_id), None)
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
            raise MalformedResponse("too many or too large tool calls")
        return text
