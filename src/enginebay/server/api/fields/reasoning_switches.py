"""The fields that control thinking. They are noted as ignored, except for enable_thinking, which templates may read.

This is the one place to translate them to the switches of the model's chat template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.server.api.fields.field_table import find_rule
from enginebay.server.api.fields.unknown_fields import shorten_name
from enginebay.server.api.openai.schemas import ChatBody

_MAX_SHOWN = 8


def note_reasoning_switches(body: ChatBody, ignored: dict[str, str], translated: dict[str, str]) -> None:
    for name in ("reasoning_effort", "max_reasoning_tokens"):
        if getattr(body, name) is not None:
            ignored[name] = _describe("ChatBody", name)
    if body.thinking is not None:
        enabled = _read_thinking(body.thinking)
        if enabled is None or body.enable_thinking not in (None, enabled):
            ignored["thinking"] = (
                "neither enabled nor disabled" if enabled is None else "enable_thinking says otherwise"
            )
        else:
            body.enable_thinking = enabled
            translated["thinking"] = _describe("ChatBody", "thinking")
    if body.enable_thinking is not None:
        if body.thinking is None:
            translated["enable_thinking"] = _describe("ChatBody", "enable_thinking")
        body.chat_template_kwargs = {"enable_thinking": body.enable_thinking, **(body.chat_template_kwargs or {})}


def note_reasoning_object(reasoning: Mapping[str, Any] | None, ignored: dict[str, str]) -> None:
    """Note the `reasoning` of /v1/responses."""
    names = [shorten_name(name) for name, value in (reasoning or {}).items() if value is not None]
    shown = [f"reasoning.{name}" for name in names] if len(names) <= _MAX_SHOWN else ["reasoning"]
    ignored |= dict.fromkeys(shown, _describe("ResponsesBody", "reasoning"))


def _describe(body_name: str, field: str) -> str:
    rule = find_rule(body_name, field)
    assert rule is not None
    return rule.detail


def _read_thinking(thinking: Any) -> bool | None:
    """Read true, false, {"type": "enabled"} or {"type": "disabled"}."""
    if isinstance(thinking, Mapping):
        thinking = {"enabled": True, "adaptive": True, "disabled": False}.get(str(thinking.get("type")))
    return thinking if isinstance(thinking, bool) else None
