"""Qwen3-Coder: XML-like calls whose values carry no quotes and are typed by the tool's schema.

    <tool_call>
    <function=name>
    <parameter=key>
    value
    </parameter>
    </function>
    </tool_call>

The model sometimes forgets the <tool_call> in front; then <function=…> is a call if it names one of the tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.tools.base import CallParser
from enginebay.text.tools.events import CallArguments, CallStart, ToolEvent, ToolParser
from enginebay.text.tools.finder import OpeningFinder
from enginebay.text.tools.qwen_value import VALUE_END, ValueStream
from enginebay.text.tools.scan import LONGEST_NAME, SPACE, begins_with, skip_space
from enginebay.text.tools.schema_types import allowed_types, property_schema

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER = "<parameter="
MARKERS = (_CALL, _CALL_END)
_FINDER = OpeningFinder((_CALL, _FUNCTION), bare=False)
_NAME = re.compile(rf"([^<>\s]{{1,{LONGEST_NAME}}})>")
_NAME_SO_FAR = re.compile(rf"[^<>\s]{{0,{LONGEST_NAME}}}\Z")
_KEY = re.compile(rf"([^<>\n]{{1,{LONGEST_NAME}}})>")
_KEY_SO_FAR = re.compile(rf"[^<>\n]{{0,{LONGEST_NAME}}}\Z")


def parser(tools: Sequence[Mapping[str, Any]]) -> ToolParser:
    return QwenCalls(tools)


class QwenCalls(CallParser):
    """Text, then a function tag, then parameters; each state reads one tag or value."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(_FINDER)
        functions = [tool["function"] for tool in tools]
        self._schemas = {function["name"]: function.get("parameters") or {} for function in functions}
        self._schema: Mapping[str, Any] = {}
        self._value = ValueStream(frozenset())
        self._separator = "{"

    def _opened(self, out: list[ToolEvent]) -> bool:
        at = self._lead
        if self._opening == _CALL:
            at = skip_space(self._buffer, at)
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
        out.append(CallStart(self._index, name))
        self._schema = self._schemas.get(name, {})
        self._separator = "{"
        self._at = match.end()
        self._started()
        self._state = self._between
        return True

    def _between(self, out: list[ToolEvent]) -> bool:
        """In front of a parameter or of the end of the call. Anything else is no part of the call."""
        text = self._buffer = self._buffer.lstrip(SPACE)
        tags = {tag: begins_with(text, 0, tag) for tag in (_PARAMETER, _FUNCTION_END, _CALL_END)}
        if tags[_PARAMETER]:
            return self._open_parameter(out)
        if tags[_FUNCTION_END] or tags[_CALL_END]:
            self._give("{}" if self._separator == "{" else "}", out)
            self._buffer = text[len(_FUNCTION_END) :] if tags[_FUNCTION_END] else text
            self._state = self._closing
            return True
        return False if None in tags.values() else self._close()

    def _open_parameter(self, out: list[ToolEvent]) -> bool:
        match = _KEY.match(self._buffer, len(_PARAMETER))
        if match is None:
            return False if _KEY_SO_FAR.match(self._buffer, len(_PARAMETER)) else self._close()
        key = match.group(1).strip()
        self._give(f"{self._separator}{json.dumps(key, ensure_ascii=False)}: ", out)
        self._separator = ", "
        self._value = ValueStream(allowed_types(property_schema(self._schema, key), self._schema))
        self._buffer = self._buffer[match.end() :]
        self._state = self._in_value
        return True

    def _in_value(self, out: list[ToolEvent]) -> bool:
        fragment, taken, done = self._value.read(self._buffer)
        self._give(fragment, out)
        self._buffer = self._buffer[taken:]
        if done:
            self._buffer = self._buffer[len(VALUE_END) :]
            self._state = self._between
        return done

    def _closing(self, out: list[ToolEvent]) -> bool:
        """Behind </function>: the end of the call may follow."""
        self._skip_gap()
        closes = begins_with(self._buffer, 0, _CALL_END)
        if closes is None:
            return False
        if closes:
            self._skip_closer(_CALL_END)
        return self._close()

    def _close(self) -> bool:
        self._index += 1
        return self._finished()

    def _give(self, fragment: str, out: list[ToolEvent]) -> None:
        if fragment:
            out.append(CallArguments(self._index, fragment))

    def _give_up(self, out: list[ToolEvent]) -> None:
        if self._state == self._opened:
            self._reject(out)
            return
        if self._state == self._in_value:
            self._give(self._value.cut(self._buffer), out)
        if self._state != self._closing:
            self._buffer = ""
        self._close()
