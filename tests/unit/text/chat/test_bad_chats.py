"""What a client can put into a chat that a template could not stand: it is refused before."""

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
def test_arguments_of_a_call_that_are_no_json_stay_as_they_are(arguments: str) -> None:
    """A model was cut off, or wrote nonsense: whoever sends its call back, with what was wrong, is understood."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    text = RENDERER.render([{"role": "assistant", "tool_calls": [call]}])
    assert json.loads(text)["tool_calls"][0]["function"]["arguments"] == arguments


def test_a_whole_character_written_in_two_halves() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\ud83d\\ude00"}'}}
    text = RENDERER.render([{"role": "assistant", "tool_calls": [call]}])
    assert json.loads(text)["tool_calls"][0]["function"]["arguments"] == {"a": "\U0001f600"}


def test_a_role_as_long_as_a_book_is_named_shortly() -> None:
    with pytest.raises(InvalidRequest) as refused:
        RENDERER.render([{"role": "x" * 10**6, "content": "hi"}])
    assert len(refused.value.message) < 200


def test_a_role_that_nobody_knows_is_told_all_that_are_known() -> None:
    with pytest.raises(InvalidRequest) as refused:
        RENDERER.render([{"role": "robot", "content": "hi"}])
    told = refused.value.hint.removeprefix("use one of ").split(", ")
    assert {"system", "user", "assistant", "tool"} < set(told) and told == list(ROLES)
    for role in told:
        RENDERER.render([{"role": role, "content": "hi"}])
