"""Rules that select the fake engine's output by turn and by tool."""

from __future__ import annotations

import json
from typing import Any

import pytest

from enginebay.engines.fake.script_rules import read_rules, select_output
from enginebay.errors import LoadFailed
from enginebay.text.chat.plain_chat import render_plain

READ = {"name": "read", "arguments": {"path": "a.txt"}}
RULES = read_rules(
    [
        {"tool_offered": "read", "turn": 1, "call": READ},
        {"after_tool": "read", "prompt_contains": "no such file", "text": "It is gone."},
        {"after_tool": "read", "text": "Read."},
        {"tool_offered": "", "text": "Without tools."},
        {"turn": 3, "after_tool": "", "text": "You are welcome."},
    ]
)
TOOLS = [{"type": "function", "function": {"name": "read"}}]
USER = {"role": "user", "content": "Read a.txt."}


def ask(*messages: dict[str, Any], tools: list[dict[str, Any]] | None = TOOLS) -> str | None:
    return select_output(RULES, render_plain([USER, *messages], tools))


def use_tool(result: str) -> list[dict[str, Any]]:
    call = {"id": "1", "function": READ}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": result},
    ]


def test_a_session_follows_the_rules() -> None:
    assert json.loads(ask() or "") == READ
    assert ask(*use_tool("hello")) == "Read."
    assert ask(*use_tool("no such file")) == "It is gone."
    thanks = [{"role": "assistant", "content": "Read."}, {"role": "user", "content": "Thanks."}]
    assert ask(*use_tool("hello"), *thanks) == "You are welcome."


def test_a_request_without_tools() -> None:
    assert ask(tools=None) == "Without tools."


def test_no_rule_holds() -> None:
    other = [{"type": "function", "function": {"name": "write"}}]
    assert ask(tools=other) is None
    assert select_output((), "anything") is None


def test_several_calls_are_a_list() -> None:
    [rule] = read_rules([{"call": [READ, READ]}])
    assert json.loads(rule.output) == [READ, READ]


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("text", "is not a map"),
        ({"text": "a", "turns": 1}, "unknown key: turns"),
        ({"text": "a", "turn": "1"}, "turn has the wrong type"),
        ({"turn": 1}, "either text or call"),
        ({"text": "a", "call": READ}, "either text or call"),
        ({"call": {"name": "read"}}, "needs a name and arguments"),
        ({"call": [READ, "read"]}, "needs a name and arguments"),
    ],
)
def test_a_wrong_rule_is_named(rule: Any, problem: str) -> None:
    with pytest.raises(LoadFailed, match=problem) as found:
        read_rules([{"text": "fine"}, rule])
    assert "script_rules[1]" in found.value.message and "prompt_contains" in found.value.hint
