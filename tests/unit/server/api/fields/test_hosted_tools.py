"""Hosted tools: left out and named."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.server.api.fields.hosted_tools import HOSTED_TOOLS, drop_hosted_tools

OWN: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize("kind", [*HOSTED_TOOLS, "web_search_preview", "web_search_2025_08_26", "computer_use_preview"])
def test_a_hosted_tool_is_left_out_and_named(kind: str) -> None:
    ignored: dict[str, str] = {}
    assert drop_hosted_tools([{"type": kind, "server_url": "x"}, OWN], ignored) == [OWN]
    assert kind in ignored["tools"]


def test_other_tools_stay() -> None:
    ignored: dict[str, str] = {}
    others: list[dict[str, Any]] = [OWN, {"type": "custom"}, {"type": "web_searching"}, {"type": ["mcp"]}, {}]
    assert drop_hosted_tools(others, ignored) == others
    assert drop_hosted_tools(None, ignored) is None and ignored == {}


def test_the_note_is_short() -> None:
    ignored: dict[str, str] = {}
    drop_hosted_tools([{"type": f"mcp_2025_01_{day:02}"} for day in range(100)], ignored)
    assert len(ignored["tools"]) < 300 and " and 92 more would run" in ignored["tools"]
