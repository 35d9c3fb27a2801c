"""Plain JSON, for models without a format of their own and for guided output: an object or an array, perhaps in a fence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.tools.events import ToolParser
from enginebay.text.tools.json_calls import JsonCalls, JsonSyntax

MARKERS: tuple[str, ...] = ()
_SYNTAX = JsonSyntax(separators=";,", bare=True, fence=True)


def parser(tools: Sequence[Mapping[str, Any]]) -> ToolParser:
    return JsonCalls(_SYNTAX, tools)
