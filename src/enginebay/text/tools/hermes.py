"""Hermes 2 and 3, Qwen2.5, Qwen3: <tool_call>{"name": …, "arguments": {…}}</tool_call>, once per call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.tools.events import ToolParser
from enginebay.text.tools.json_calls import JsonCalls, JsonSyntax

MARKERS = ("<tool_call>", "</tool_call>")
_SYNTAX = JsonSyntax(marker="<tool_call>", closer="</tool_call>")


def parser(tools: Sequence[Mapping[str, Any]]) -> ToolParser:
    return JsonCalls(_SYNTAX, tools)
