"""Messages whose parts have the wrong type."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.errors import InvalidRequest
from enginebay.text.chat.chat_messages import normalize_messages


def make_call(**fields: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}, **fields}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"role": "tool", "content": "", "tool_call_id": {}}, "messages[0].tool_call_id"),
        (make_call(function=[None, None]), "messages[0].tool_calls[0] has no function"),
        (make_call(function=None), "messages[0].tool_calls[0] has no function"),
        (make_call(type="custom"), "messages[0].tool_calls[0].type"),
        (make_call(id=3), "messages[0].tool_calls[0].id"),
        (make_call(function={"arguments": "{}"}), "messages[0].tool_calls[0].function has no name"),
        (make_call(function={"name": "f", "arguments": [1]}), "messages[0].tool_calls[0].function.arguments"),
    ],
)
def test_parts_of_a_call_have_the_right_type(message: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        normalize_messages([message], keep_parts=False)
    assert caught.value.param == "messages" and where in caught.value.message


@pytest.mark.parametrize("missing", ["id", "type"])
def test_a_call_may_lack_what_no_template_needs(missing: str) -> None:
    message = make_call()
    del message["tool_calls"][0][missing]
    assert normalize_messages([message], keep_parts=False)[0]["tool_calls"][0]["function"]["arguments"] == {}
