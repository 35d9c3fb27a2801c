"""Thoughts of earlier turns, where each kind of template reads them."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.errors import InvalidRequest
from enginebay.text.chat.chat_renderer import ChatRenderer
from enginebay.text.reasoning.reasoning_history import ReasoningSlot, find_reasoning_slot


def loop(body: str) -> str:
    return "{% for m in messages %}[{{ m.role }}]" + body + "{% endfor %}"


FIELD = loop("{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}")
OTHER_FIELD = loop("{% if m['reasoning'] is string %}({{ m['reasoning'] }}){% endif %}{{ m.content }}")
GET = loop("<think>{{ m.get('reasoning_content', '') }}</think>{{ m.content }}")
THINKING = loop(
    """{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}{% endif %}
{%- if "thinking" in m %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}{{ m.content }}"""
)
PARTS = loop(
    "{% if m.content is string %}{{ m.content }}{% else %}{% for block in m['content'] %}{% if block['type'] == 'text' %}{{ block['text'] }}"
    "{% elif block['type'] == 'thinking' %}[THINK]{{ block['thinking'] }}[/THINK]{% endif %}{% endfor %}{% endif %}"
)
LAST_ONLY = loop(
    "{% set c = m.content %}{% if not loop.last %}{% set c = m.content.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ c }}"
)
PLAIN = loop("{{ m.content }}")
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def render(template: str, *messages: dict[str, Any]) -> str:
    return ChatRenderer({"default": template}, {}).render(messages, add_generation_prompt=False)


def answer(content: Any = "yes", **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


@pytest.mark.parametrize(
    ("template", "slot"),
    [
        (FIELD, ReasoningSlot.REASONING_CONTENT),
        (GET, ReasoningSlot.REASONING_CONTENT),
        (OTHER_FIELD, ReasoningSlot.REASONING),
        (THINKING, ReasoningSlot.THINKING),
        (PARTS, ReasoningSlot.PART),
        (LAST_ONLY, ReasoningSlot.TAGS),
        (PLAIN, ReasoningSlot.NONE),
        (None, ReasoningSlot.NONE),
    ],
)
def test_the_template_shows_where_it_reads_thoughts(template: str | None, slot: ReasoningSlot) -> None:
    assert find_reasoning_slot(template) is slot


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        (FIELD, "[assistant]<think>hm</think>yes"),
        (OTHER_FIELD, "[assistant](hm)yes"),
        (THINKING, "[assistant]<|channel|>analysis<|message|>hm<|end|>yes"),
        (PARTS, "[assistant][THINK]hm[/THINK]yes"),
        (LAST_ONLY, "[assistant]<think>\nhm\n</think>\n\nyes"),
        (PLAIN, "[assistant]yes"),
    ],
)
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_both_names_reach_the_template(template: str, rendered: str, name: str) -> None:
    assert render(template, answer(**{name: "hm"})) == rendered
    assert render(template, answer(reasoning_content="hm", reasoning="hm")) == rendered


def test_a_template_may_drop_earlier_thoughts() -> None:
    assert render(LAST_ONLY, answer(reasoning="hm"), {"role": "user", "content": "?"}) == "[assistant]yes[user]?"


@pytest.mark.parametrize("template", [FIELD, OTHER_FIELD, THINKING, PARTS, LAST_ONLY, PLAIN])
@pytest.mark.parametrize("empty", [None, ""])
def test_no_thought_is_as_if_it_were_not_sent(template: str, empty: str | None) -> None:
    assert render(template, answer(reasoning_content=empty, reasoning=None)) == render(template, answer())


def test_a_thought_before_a_call() -> None:
    message = answer("I look.", tool_calls=[CALL], reasoning_content="hm")
    assert render(THINKING, message) == "[assistant]<|channel|>analysis<|message|>hm\n\nI look.<|end|>"
    assert render(FIELD, message) == "[assistant]<think>hm</think>I look."
    assert render(PARTS, answer(None, tool_calls=[CALL], reasoning="hm")) == "[assistant][THINK]hm[/THINK]"
    assert render(LAST_ONLY, message) == "[assistant]I look.", "a template that has no field keeps no thought of a call"


def test_a_thought_is_text() -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.reasoning_content is not a string"):
        render(FIELD, answer(reasoning_content=["hm"]))
