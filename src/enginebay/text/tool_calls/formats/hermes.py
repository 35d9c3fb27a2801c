"""Hermes 2 and 3, Qwen2.5, Qwen3: one <tool_call>{"name": …, "arguments": {…}}</tool_call> per call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.output_events import OutputEventParser
from enginebay.text.tool_calls.json_call_parser import JsonCallParser, JsonCallSyntax

MARKERS = ("<tool_call>", "</tool_call>")
_SYNTAX = JsonCallSyntax(marker="<tool_call>", closer="</tool_call>")


def create_parser(tools: Sequence[Mapping[str, Any]]) -> OutputEventParser:
    return JsonCallParser(_SYNTAX, tools)
