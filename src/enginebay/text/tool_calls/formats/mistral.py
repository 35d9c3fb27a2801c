"""Mistral: [TOOL_CALLS] before a JSON array of calls, or (tokenizer v11 and later) before each name[ARGS]{…}.

Some v11 models write name[CALL_ID]id[ARGS]{…}. The id is dropped: the server assigns its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.output_events import OutputEvent, OutputEventParser, ToolCallArguments, ToolCallStart
from enginebay.text.tool_calls.argument_stream import ArgumentStream
from enginebay.text.tool_calls.json_call_parser import JsonCallParser, JsonCallSyntax
from enginebay.text.tool_calls.json_scanner import MAX_NAME_LENGTH, WHITESPACE, begins_with, skip_whitespace

_MARKER, _CALL_ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
MARKERS = (_MARKER, _CALL_ID, _ARGS)
_SYNTAX = JsonCallSyntax(marker=_MARKER)
_NAME = re.compile(r"[\w.:/-]*", re.ASCII)
_ID = re.compile(r"\w*", re.ASCII)


def create_parser(tools: Sequence[Mapping[str, Any]]) -> OutputEventParser:
    return MistralCallParser(_SYNTAX, tools)


class MistralCallParser(JsonCallParser):
    """Parses bare names in addition to JSON calls."""

    def __init__(self, syntax: JsonCallSyntax, tools: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(syntax, tools)
        self._stream = ArgumentStream()

    def _read_opening(self, out: list[OutputEvent]) -> bool:
        at = skip_whitespace(self._buffer, self._opening_length)
        if at == len(self._buffer):
            return False
        if self._buffer[at] in "[{":
            return super()._read_opening(out)
        name, end = _match_word(_NAME, self._buffer, at)
        if not name or len(name) > MAX_NAME_LENGTH:
            return self._reject(out)
        arguments_at = self._find_arguments(end)
        if arguments_at is None:
            return False
        if arguments_at < 0:
            return self._reject(out)
        out.append(ToolCallStart(self._index, name))
        self._position = arguments_at
        self._commit_call()
        self._stream = ArgumentStream()
        self._state = self._read_before_arguments
        return True

    def _find_arguments(self, at: int) -> int | None:
        """Return where the arguments after a name start; None if incomplete, -1 if there are none."""
        text = self._buffer
        at = skip_whitespace(text, at)
        if text[at : at + 1] == "{":
            return at
        has_id = begins_with(text, at, _CALL_ID)
        if has_id:
            _, at = _match_word(_ID, text, skip_whitespace(text, at + len(_CALL_ID)))
            at = skip_whitespace(text, at)
        has_arguments = begins_with(text, at, _ARGS)
        if has_arguments:
            return at + len(_ARGS)
        return None if has_arguments is None or has_id is None else -1

    def _read_before_arguments(self, out: list[OutputEvent]) -> bool:
        at = skip_whitespace(self._buffer, 0)
        if at == len(self._buffer):
            return False
        if self._buffer[at] == "{":
            self._buffer = self._buffer[at:]
            self._state = self._read_arguments
            return True
        next_call = begins_with(self._buffer, at, _MARKER)
        if next_call is None:
            return False
        return self._close_call("{}" if next_call else "", out)

    def _read_arguments(self, out: list[OutputEvent]) -> bool:
        end, fragment = self._stream.advance(self._buffer, 0)
        self._buffer = self._buffer[end:]
        if self._stream.done or self._stream.broken:
            return self._close_call(fragment, out)
        if fragment:
            out.append(ToolCallArguments(self._index, fragment))
        return False

    def _close_call(self, fragment: str, out: list[OutputEvent]) -> bool:
        if fragment:
            out.append(ToolCallArguments(self._index, fragment))
        self._index += 1
        return self._finish_call()

    def _finish_incomplete(self, out: list[OutputEvent]) -> None:
        if self._state == self._read_before_arguments:
            self._close_call("" if self._buffer.strip(WHITESPACE) else "{}", out)
        elif self._state == self._read_arguments:
            self._close_call("", out)
        else:
            super()._finish_incomplete(out)


def _match_word(pattern: re.Pattern[str], text: str, at: int) -> tuple[str, int]:
    match = pattern.match(text, at)
    return (match.group(), match.end()) if match else ("", at)
