"""Hosted tools and the switches of thinking: left out and named."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.server.api.fields.hosted_tools import HOSTED_TOOLS, drop_hosted_tools
from enginebay.server.api.fields.reasoning_switches import note_reasoning_object, note_reasoning_switches
from enginebay.server.api.openai.schemas import ChatBody

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
    assert len(ignored["tools"]) < 300


def note(**fields: Any) -> tuple[ChatBody, dict[str, str], dict[str, str]]:
    body = ChatBody(model="m", messages=[{"role": "user", "content": "hi"}], **fields)
    ignored: dict[str, str] = {}
    translated: dict[str, str] = {}
    note_reasoning_switches(body, ignored, translated)
    return body, ignored, translated


def test_effort_and_budget_are_named() -> None:
    _, ignored, translated = note(reasoning_effort="low", max_reasoning_tokens=9)
    assert ignored.keys() == {"reasoning_effort", "max_reasoning_tokens"} and not translated


@pytest.mark.parametrize(
    ("thinking", "enabled"),
    [(True, True), (False, False), ({"type": "enabled", "budget_tokens": 9}, True), ({"type": "disabled"}, False)],
)
def test_thinking_becomes_a_variable_of_the_template(thinking: Any, enabled: bool) -> None:
    body, ignored, translated = note(thinking=thinking, chat_template_kwargs={"a": 1})
    assert body.chat_template_kwargs == {"enable_thinking": enabled, "a": 1}
    assert translated.keys() == {"thinking"} and not ignored


def test_enable_thinking_too_unless_the_template_options_say_otherwise() -> None:
    body, _, translated = note(enable_thinking=False)
    assert body.chat_template_kwargs == {"enable_thinking": False} and translated.keys() == {"enable_thinking"}
    body, _, _ = note(enable_thinking=False, chat_template_kwargs={"enable_thinking": True})
    assert body.chat_template_kwargs == {"enable_thinking": True}


@pytest.mark.parametrize(
    "fields", [{"thinking": "maybe"}, {"thinking": {}}, {"thinking": True, "enable_thinking": False}]
)
def test_thinking_that_says_nothing_clear_is_ignored(fields: dict[str, Any]) -> None:
    assert note(**fields)[1].keys() == {"thinking"}


def test_reasoning_of_responses() -> None:
    ignored: dict[str, str] = {}
    note_reasoning_object({"effort": "low", "summary": None}, ignored)
    assert ignored.keys() == {"reasoning.effort"}
    ignored.clear()
    note_reasoning_object({f"x{number}": 1 for number in range(1000)}, ignored)
    assert ignored.keys() == {"reasoning"}
    ignored.clear()
    note_reasoning_object(None, ignored)
    assert ignored == {}
