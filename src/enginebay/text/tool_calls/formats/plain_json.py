"""Plain JSON, for models without a known format and for guided output: an object or array, optionally in a fence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.output_events import OutputEventParser
from enginebay.text.tool_calls.json_call_parser import JsonCallParser, JsonCallSyntax

MARKERS: tuple[str, ...] = ()
_SYNTAX = JsonCallSyntax(separators=";,", bare=True, fence=True)


def create_parser(tools: Sequence[Mapping[str, Any]]) -> OutputEventParser:
    return JsonCallParser(_SYNTAX, tools)
