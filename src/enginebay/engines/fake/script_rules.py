"""Rules that select the fake engine's output by turn and by tool, so that whole agent sessions can be scripted. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.errors import LoadFailed
from enginebay.text.chat.plain_chat import read_plain_chat

_CONDITIONS: Mapping[str, type] = {"turn": int, "after_tool": str, "tool_offered": str, "prompt_contains": str}
_OUTPUTS: Mapping[str, type | tuple[type, ...]] = {"text": str, "call": (dict, list)}
_HINT = (
    f"a rule has conditions ({', '.join(_CONDITIONS)}) and one output: "
    "text, or call with a name and arguments, or a list of calls"
)


@dataclass(frozen=True, slots=True)
class ScriptRule:
    """One rule. A condition that is None holds for every prompt."""

    output: str
    turn: int | None = None  # of the assistant: 1 is its first. Only a chat with tools has more than one
    after_tool: str | None = None  # the last message is the result of this tool; empty: of none
    tool_offered: str | None = None  # the request has this tool; empty: it has none
    prompt_contains: str | None = None


def read_rules(rules: Sequence[Any]) -> tuple[ScriptRule, ...]:
    """Check the setting. Raises `LoadFailed`."""
    return tuple(_read_rule(rule, f"script_rules[{number}]") for number, rule in enumerate(rules))


def _read_rule(rule: Any, where: str) -> ScriptRule:
    if not isinstance(rule, Mapping):
        raise LoadFailed(f"{where} is not a map", _HINT)
    for name, value in rule.items():
        expected = _CONDITIONS.get(name) or _OUTPUTS.get(name)
        if expected is None:
            raise LoadFailed(f"{where} has an unknown key: {name}", _HINT)
        if not isinstance(value, expected):
            raise LoadFailed(f"{where}.{name} has the wrong type", _HINT)
    if ("text" in rule) == ("call" in rule):
        raise LoadFailed(f"{where} needs either text or call", _HINT)
    conditions = {name: value for name, value in rule.items() if name in _CONDITIONS}
    return ScriptRule(rule["text"] if "text" in rule else write_call(rule["call"], where), **conditions)


def write_call(call: Any, where: str = "call") -> str:
    """Write one call, or several, in the format that a model without a chat template has."""
    for one in call if isinstance(call, list) else [call]:
        if not isinstance(one, Mapping) or set(one) != {"name", "arguments"}:
            raise LoadFailed(f"{where}.call needs a name and arguments, and nothing else", _HINT)
    return json.dumps(call, ensure_ascii=False)


def select_output(rules: Sequence[ScriptRule], prompt: str) -> str | None:
    """Return the output of the first rule whose conditions all hold; None without one."""
    if not rules:
        return None
    chat = read_plain_chat(prompt)
    for rule in rules:
        if (
            rule.turn in (None, chat.turn)
            and rule.after_tool in (None, chat.last_tool)
            and (rule.tool_offered is None or rule.tool_offered in (chat.tools or {""}))
            and (rule.prompt_contains is None or rule.prompt_contains in prompt)
        ):
            return rule.output
    return None
