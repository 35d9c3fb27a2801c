"""Messages whose parts have the wrong type."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.errors import InvalidRequest
from enginebay.text.chat.chat_messages import normalize_messages


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": "", "tool_call_id": {}},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "", "type": "function", "function": [None, None]}],
        },
    ],
)
def test_parts_of_a_call_have_the_right_type(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        normalize_messages([message], keep_parts=False)
    assert caught.value.param == "messages"
