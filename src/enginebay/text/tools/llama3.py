"""Llama 3.1 and later: {"name": …, "parameters": {…}}, several separated by `;`, with or without <|python_tag|> in front.

Behind the tag Llama also writes calls of its built-in tools as Python (`brave_search.call(query="…")`); those are text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.text.tools.events import ToolParser
from enginebay.text.tools.json_calls import JsonCalls, JsonSyntax

MARKERS = ("<|python_tag|>",)
_SYNTAX = JsonSyntax(marker="<|python_tag|>", separators=";,", bare=True)


def parser(tools: Sequence[Mapping[str, Any]]) -> ToolParser:
    return JsonCalls(_SYNTAX, tools)
