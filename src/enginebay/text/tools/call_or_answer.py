"""An answer guided by `call_or_answer_schema`, as it arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.tools.call_object import CallObject
from enginebay.text.tools.events import Text, ToolEvent, joined
from enginebay.text.tools.json_calls import tool_names
from enginebay.text.tools.scan import SPACE


class CallOrAnswer:
    """The whole answer is one call, or else all of it is text, whatever stands inside."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._call = CallObject(0, tool_names(tools), exact=True)
        self._held = ""
        self._at = 0
        self._is_text = False

    def feed(self, text: str) -> list[ToolEvent]:
        self._held += text
        if self._is_text:
            return self._given_out()
        out: list[ToolEvent] = []
        self._at = self._call.advance(self._held, self._at, out)
        if self._call.started:
            self._held, self._at = self._held[self._at :], 0
        ended = self._call.broken or self._call.done
        if ended and self._call.started:
            self._held = self._held.lstrip(SPACE)  # behind a call there is nothing else
        if ended and (self._held or not self._call.started):
            self._is_text = True
            out += self._given_out()
        return joined(out)

    def end(self) -> list[ToolEvent]:
        return [] if self._call.started and not self._is_text else self._given_out()

    def _given_out(self) -> list[ToolEvent]:
        held, self._held = self._held, ""
        return [Text(held)] if held else []
