"""Hermes 2 and 3, Qwen2.5, Qwen3: one <tool_call>{"name": …, "arguments": {…}}</tool_call> per call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.tool_calls.json_call_parser import JsonCallParser, JsonCallSyntax
from enginebay.text.tool_calls.tool_call_events import ToolCallParser

MARKERS = ("<tool_call>", "</tool_call>")
_SYNTAX = JsonCallSyntax(marker="<tool_call>", closer="</tool_call>")


def create_parser(tools: Sequence[Mapping[str, Any]]) -> ToolCallParser:
    return JsonCallParser(_SYNTAX, tools)
