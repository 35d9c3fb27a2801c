"""Llama 3.1 and later: {"name": …, "parameters": {…}}, separated by `;`, optionally after <|python_tag|>.

After the tag, Llama also calls its built-in tools as Python (`brave_search.call(query="…")`). Those stay text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.output_events import OutputEventParser
from enginebay.text.tool_calls.json_call_parser import JsonCallParser, JsonCallSyntax

MARKERS = ("<|python_tag|>",)
_SYNTAX = JsonCallSyntax(marker="<|python_tag|>", separators=";,", bare=True)


def create_parser(tools: Sequence[Mapping[str, Any]]) -> OutputEventParser:
    return JsonCallParser(_SYNTAX, tools)
