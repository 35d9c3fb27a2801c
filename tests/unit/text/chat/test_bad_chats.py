"""Chats that would break a template are rejected before it runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from enginebay.errors import InvalidRequest
from enginebay.text.chat.chat_messages import ROLES
from enginebay.text.chat.chat_renderer import ChatRenderer

RENDERER = ChatRenderer({"default": "{% for message in messages %}{{ message | tojson }}{% endfor %}"}, {})


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize("field", ["tools", "documents"])
def test_objects_that_are_too_deep(field: str) -> None:
    with pytest.raises(InvalidRequest, match="nested too deeply") as refused:
        RENDERER.render([{"role": "user", "content": "hi"}], **{field: [nested(900)]})
    assert refused.value.param == field


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"\\udfff": 1}', "[" * 100_000, "{", "NaN}", "NaN"])
def test_arguments_that_are_not_json_stay_unchanged(arguments: str) -> None:
    """Clients send back truncated or invalid calls together with the error."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    text = RENDERER.render([{"role": "assistant", "tool_calls": [call]}])
    assert json.loads(text)["tool_calls"][0]["function"]["arguments"] == arguments


def test_a_surrogate_pair_in_arguments() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\ud83d\\ude00"}'}}
    text = RENDERER.render([{"role": "assistant", "tool_calls": [call]}])
    assert json.loads(text)["tool_calls"][0]["function"]["arguments"] == {"a": "\U0001f600"}


def test_a_very_long_role_is_shortened() -> None:
    with pytest.raises(InvalidRequest) as refused:
        RENDERER.render([{"role": "x" * 10**6, "content": "hi"}])
    assert len(refused.value.message) < 200


def test_an_unknown_role_lists_the_known_ones() -> None:
    with pytest.raises(InvalidRequest) as refused:
        RENDERER.render([{"role": "robot", "content": "hi"}])
    roles = refused.value.hint.removeprefix("use one of ").split(", ")
    assert {"system", "user", "assistant", "tool"} < set(roles) and roles == list(ROLES)
    for role in roles:
        RENDERER.render([{"role": role, "content": "hi"}])
