"""Mistral: [TOOL_CALLS] and then a JSON array of calls, or (tokenizers from v11 on) name[ARGS]{…}, the marker once per call.

Some v11 models write name[CALL_ID]id[ARGS]{…}; the id is dropped, since the server gives ids of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.tools.arguments import ArgumentStream
from enginebay.text.tools.events import CallArguments, CallStart, ToolEvent, ToolParser
from enginebay.text.tools.json_calls import JsonCalls, JsonSyntax
from enginebay.text.tools.scan import LONGEST_NAME, SPACE, begins_with, skip_space

_MARKER, _CALL_ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
MARKERS = (_MARKER, _CALL_ID, _ARGS)
_SYNTAX = JsonSyntax(marker=_MARKER)
_NAME = re.compile(r"[\w.:/-]*", re.ASCII)
_ID = re.compile(r"\w*", re.ASCII)


def parser(tools: Sequence[Mapping[str, Any]]) -> ToolParser:
    return MistralCalls(_SYNTAX, tools)


class MistralCalls(JsonCalls):
    """Adds the form with bare names to the JSON one."""

    def __init__(self, syntax: JsonSyntax, tools: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(syntax, tools)
        self._stream = ArgumentStream()

    def _opened(self, out: list[ToolEvent]) -> bool:
        at = skip_space(self._buffer, self._lead)
        if at == len(self._buffer):
            return False
        if self._buffer[at] in "[{":
            return super()._opened(out)
        name, end = _word(_NAME, self._buffer, at)
        if not name or len(name) > LONGEST_NAME:
            return self._reject(out)
        begins = self._arguments_at(end)
        if begins is None:
            return False
        if begins < 0:
            return self._reject(out)
        out.append(CallStart(self._index, name))
        self._at = begins
        self._started()
        self._stream = ArgumentStream()
        self._state = self._before_arguments
        return True

    def _arguments_at(self, at: int) -> int | None:
        """Where the arguments of the name that ends at `at` begin; None if it is not there yet, -1 if nowhere."""
        text = self._buffer
        at = skip_space(text, at)
        if text[at : at + 1] == "{":
            return at
        has_id = begins_with(text, at, _CALL_ID)
        if has_id:
            _, at = _word(_ID, text, skip_space(text, at + len(_CALL_ID)))
            at = skip_space(text, at)
        has_arguments = begins_with(text, at, _ARGS)
        if has_arguments:
            return at + len(_ARGS)
        return None if has_arguments is None or has_id is None else -1

    def _before_arguments(self, out: list[ToolEvent]) -> bool:
        at = skip_space(self._buffer, 0)
        if at == len(self._buffer):
            return False
        if self._buffer[at] == "{":
            self._buffer = self._buffer[at:]
            self._state = self._in_arguments
            return True
        next_call = begins_with(self._buffer, at, _MARKER)
        if next_call is None:
            return False
        return self._close("{}" if next_call else "", out)

    def _in_arguments(self, out: list[ToolEvent]) -> bool:
        end, fragment = self._stream.advance(self._buffer, 0)
        self._buffer = self._buffer[end:]
        if self._stream.done or self._stream.broken:
            return self._close(fragment, out)
        if fragment:
            out.append(CallArguments(self._index, fragment))
        return False

    def _close(self, fragment: str, out: list[ToolEvent]) -> bool:
        if fragment:
            out.append(CallArguments(self._index, fragment))
        self._index += 1
        return self._finished()

    def _give_up(self, out: list[ToolEvent]) -> None:
        if self._state == self._before_arguments:
            self._close("" if self._buffer.strip(SPACE) else "{}", out)
        elif self._state == self._in_arguments:
            self._close("", out)
        else:
            super()._give_up(out)


def _word(pattern: re.Pattern[str], text: str, at: int) -> tuple[str, int]:
    match = pattern.match(text, at)
    return (match.group(), match.end()) if match else ("", at)
