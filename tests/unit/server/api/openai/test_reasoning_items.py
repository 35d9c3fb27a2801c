"""The field `reasoning` of /v1/responses: what has no effect is named."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.errors import InvalidRequest
from enginebay.server.api.openai.reasoning.reasoning_items import list_ignored_reasoning
from enginebay.server.api.openai.schemas import ResponsesBody


def make_body(**reasoning: Any) -> ResponsesBody:
    return ResponsesBody(model="m", input="hi", reasoning=reasoning)


def test_summaries_are_ignored_and_so_are_unknown_fields() -> None:
    ignored = list_ignored_reasoning(make_body(effort="low", summary="auto", generate_summary=None, some_new_field=1))
    assert set(ignored) == {"reasoning.summary", "reasoning.some_new_field"}
    assert "in full" in ignored["reasoning.summary"] and ignored["reasoning.some_new_field"] == "unknown"
    assert list_ignored_reasoning(ResponsesBody(model="m", input="hi")) == {}


def test_a_misspelling_is_refused_and_with_the_setting_any_unknown_field() -> None:
    with pytest.raises(InvalidRequest, match=r"reasoning\.efort") as caught:
        list_ignored_reasoning(make_body(efort="low"))
    assert caught.value.param == "reasoning" and "effort" in caught.value.hint
    with pytest.raises(InvalidRequest, match="some_new_field"):
        list_ignored_reasoning(make_body(some_new_field=1), refuse_unknown=True)
    assert set(list_ignored_reasoning(make_body(summary="auto"), refuse_unknown=True)) == {"reasoning.summary"}
