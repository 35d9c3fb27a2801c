"""Qwen3-Coder: XML-like calls with unquoted values, typed by the tool's schema.

    <tool_call>
    <function=name>
    <parameter=key>
    value
    </parameter>
    </function>
    </tool_call>

The model sometimes omits <tool_call>. <function=…> alone is a call if it names one of the tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.output_events import OutputEvent, OutputEventParser, ToolCallArguments, ToolCallStart
from enginebay.text.tool_calls.call_parser import StreamingCallParser
from enginebay.text.tool_calls.formats.qwen_value import VALUE_END, QwenValueStream
from enginebay.text.tool_calls.json_scanner import MAX_NAME_LENGTH, WHITESPACE, begins_with, skip_whitespace
from enginebay.text.tool_calls.opening_finder import CallOpeningFinder
from enginebay.text.tool_calls.schema_types import collect_allowed_types, find_property_schema

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER = "<parameter="
MARKERS = (_CALL, _CALL_END)
_FINDER = CallOpeningFinder((_CALL, _FUNCTION), bare=False)
_NAME = re.compile(rf"([^<>\s]{{1,{MAX_NAME_LENGTH}}})>")
_NAME_SO_FAR = re.compile(rf"[^<>\s]{{0,{MAX_NAME_LENGTH}}}\Z")
_KEY = re.compile(rf"([^<>\n]{{1,{MAX_NAME_LENGTH}}})>")
_KEY_SO_FAR = re.compile(rf"[^<>\n]{{0,{MAX_NAME_LENGTH}}}\Z")


def create_parser(tools: Sequence[Mapping[str, Any]]) -> OutputEventParser:
    return QwenCallParser(tools)


class QwenCallParser(StreamingCallParser):
    """Parses text, then a function tag, then parameters. Each state reads one tag or value."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(_FINDER)
        functions = [tool["function"] for tool in tools]
        self._schemas = {function["name"]: function.get("parameters") or {} for function in functions}
        self._schema: Mapping[str, Any] = {}
        self._value = QwenValueStream(frozenset())
        self._separator = "{"

    def _read_opening(self, out: list[OutputEvent]) -> bool:
        at = self._opening_length
        if self._opening == _CALL:
            at = skip_whitespace(self._buffer, at)
            tag = begins_with(self._buffer, at, _FUNCTION)
            if not tag:
                return False if tag is None else self._reject(out)
            at += len(_FUNCTION)
        match = _NAME.match(self._buffer, at)
        if match is None:
            return False if _NAME_SO_FAR.match(self._buffer, at) else self._reject(out)
        name = match.group(1)
        if self._opening == _FUNCTION and name not in self._schemas:
            return self._reject(out)
        out.append(ToolCallStart(self._index, name))
        self._schema = self._schemas.get(name, {})
        self._separator = "{"
        self._position = match.end()
        self._commit_call()
        self._state = self._read_tag
        return True

    def _read_tag(self, out: list[OutputEvent]) -> bool:
        """Read a parameter tag or the end of the call. Anything else is not part of the call."""
        text = self._buffer = self._buffer.lstrip(WHITESPACE)
        tags = {tag: begins_with(text, 0, tag) for tag in (_PARAMETER, _FUNCTION_END, _CALL_END)}
        if tags[_PARAMETER]:
            return self._open_parameter(out)
        if tags[_FUNCTION_END] or tags[_CALL_END]:
            self._emit_arguments("{}" if self._separator == "{" else "}", out)
            self._buffer = text[len(_FUNCTION_END) :] if tags[_FUNCTION_END] else text
            self._state = self._read_call_end
            return True
        return False if None in tags.values() else self._close_call()

    def _open_parameter(self, out: list[OutputEvent]) -> bool:
        match = _KEY.match(self._buffer, len(_PARAMETER))
        if match is None:
            return False if _KEY_SO_FAR.match(self._buffer, len(_PARAMETER)) else self._close_call()
        key = match.group(1).strip()
        self._emit_arguments(f"{self._separator}{json.dumps(key, ensure_ascii=False)}: ", out)
        self._separator = ", "
        self._value = QwenValueStream(collect_allowed_types(find_property_schema(self._schema, key), self._schema))
        self._buffer = self._buffer[match.end() :]
        self._state = self._read_value
        return True

    def _read_value(self, out: list[OutputEvent]) -> bool:
        fragment, length, done = self._value.read(self._buffer)
        self._emit_arguments(fragment, out)
        self._buffer = self._buffer[length:]
        if done:
            self._buffer = self._buffer[len(VALUE_END) :]
            self._state = self._read_tag
        return done

    def _read_call_end(self, out: list[OutputEvent]) -> bool:
        """Read the optional end of the call after </function>."""
        self._skip_gap()
        closes = begins_with(self._buffer, 0, _CALL_END)
        if closes is None:
            return False
        if closes:
            self._skip_closer(_CALL_END)
        return self._close_call()

    def _close_call(self) -> bool:
        self._index += 1
        return self._finish_call()

    def _emit_arguments(self, fragment: str, out: list[OutputEvent]) -> None:
        if fragment:
            out.append(ToolCallArguments(self._index, fragment))

    def _finish_incomplete(self, out: list[OutputEvent]) -> None:
        if self._state == self._read_opening:
            self._reject(out)
            return
        if self._state == self._read_value:
            self._emit_arguments(self._value.finish_incomplete(self._buffer), out)
        if self._state != self._read_call_end:
            self._buffer = ""
        self._close_call()
