"""Switches of thinking in a request, translated to the variable that a template has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.errors import InvalidRequest
from enginebay.server.api.openai.reasoning.reasoning_switches import ThinkingFields, translate_switches
from enginebay.text.chat.chat_renderer import ChatRenderer

TOGGLE = "{{ messages[0].content }}{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
THINKING = "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{% if thinking %}<think>{% endif %}"
EFFORT = "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}Reasoning: {{ reasoning_effort }}"
STRICT = (
    "{% set effort = reasoning_effort|default('xhigh') %}{% if effort not in ('xhigh', 'medium', 'low') %}"
    "{{ raise_exception('unexpected effort') }}{% endif %}{{ effort }}"
)
BOTH = "{% if thinking %}{% if reasoning_effort == 'max' %}hard{% endif %}<think>{% endif %}"
BUDGET = "{% if thinking_budget == 0 %}<seed:think></seed:think>{% endif %}"
PLAIN = "{{ messages[0].content }} enable_thinking"  # only its text has the name
NO_SWITCH = "no such switch"


def translate(template: str | None, renders: bool = False, thinks: bool = True, **fields: Any) -> tuple[Any, Any, Any]:
    renderer = ChatRenderer({"default": template}, {}) if template else None
    encoder = SimpleNamespace(renderer=renderer, chat_template=template)
    session: Any = SimpleNamespace(
        reasoning_format=object() if thinks else None,
        client=SimpleNamespace(spec=SimpleNamespace(renders=renders), prompt_encoder=encoder),
    )
    context: Any = SimpleNamespace(translated={}, ignored={})
    return translate_switches(context, session, ThinkingFields(**fields)), context.translated, context.ignored


@pytest.mark.parametrize(
    ("template", "fields", "options"),
    [
        (TOGGLE, {"enable_thinking": False}, {"enable_thinking": False}),
        (TOGGLE, {"thinking": {"type": "enabled"}}, {"enable_thinking": True}),
        (TOGGLE, {"thinking": False}, {"enable_thinking": False}),
        (TOGGLE, {"effort": "none"}, {"enable_thinking": False}),
        (TOGGLE, {"effort": "minimal"}, {"enable_thinking": False}),
        (TOGGLE, {"effort": "high"}, {"enable_thinking": True}),
        (TOGGLE, {"effort": "high", "enable_thinking": False}, {"enable_thinking": False}),
        (THINKING, {"enable_thinking": True}, {"thinking": True}),
        (THINKING, {"effort": "low"}, {"thinking": True}),
        (EFFORT, {"effort": "high"}, {"reasoning_effort": "high"}),
        (EFFORT, {"effort": "minimal"}, {"reasoning_effort": "low"}),
        (EFFORT, {"effort": "xhigh"}, {"reasoning_effort": "high"}),
        (EFFORT, {"enable_thinking": False}, {"reasoning_effort": "low"}),
        (STRICT, {"effort": "medium"}, {"reasoning_effort": "medium"}),
        (STRICT, {"effort": "high"}, {"reasoning_effort": "xhigh"}),
        (STRICT, {"effort": "none"}, {"reasoning_effort": "low"}),
        (BOTH, {"effort": "max"}, {"reasoning_effort": "max", "thinking": True}),
        (BOTH, {"effort": "none"}, {"reasoning_effort": "none", "thinking": False}),
        (BUDGET, {"max_tokens": 9}, {"thinking_budget": 9}),
    ],
)
def test_a_switch_is_set_in_the_template_and_named(template: str, fields: Any, options: Any) -> None:
    switches, translated, ignored = translate(template, **fields)
    assert switches.template_options == options
    assert translated and all("in the chat template" in note for note in translated.values())
    ignored.pop("reasoning_effort", None)  # where enable_thinking decides
    assert not ignored


@pytest.mark.parametrize("template", [PLAIN, None])
@pytest.mark.parametrize(
    "fields", [{"effort": "banana"}, {"enable_thinking": False}, {"enable_thinking": True}, {"thinking": True}]
)
def test_a_switch_that_the_template_lacks_is_named(template: str | None, fields: Any) -> None:
    switches, translated, ignored = translate(template, **fields)
    assert not switches.template_options and not translated
    assert [NO_SWITCH in why for why in ignored.values()] == [True]


def test_chat_template_kwargs_decide() -> None:
    switches, _, ignored = translate(TOGGLE, enable_thinking=False, template_kwargs={"enable_thinking": True})
    assert not switches.template_options and "chat_template_kwargs" in ignored["enable_thinking"]


def test_a_field_that_another_one_overrides_is_named() -> None:
    thinking = {"type": "enabled", "budget_tokens": 9}
    switches, _, ignored = translate(TOGGLE, enable_thinking=False, thinking=thinking, max_tokens=5)
    assert switches.template_options == {"enable_thinking": False} and switches.max_tokens == 5
    assert ignored == {
        "thinking": "enable_thinking decides",
        "thinking.budget_tokens": "max_reasoning_tokens decides",
    }


def test_the_dialect_names_the_field() -> None:
    _, _, ignored = translate(PLAIN, effort="low", effort_param="reasoning.effort")
    assert list(ignored) == ["reasoning.effort"]
    with pytest.raises(InvalidRequest) as caught:
        translate(EFFORT, effort="banana", effort_param="reasoning.effort")
    assert caught.value.param == "reasoning.effort" and "medium" in caught.value.hint


@pytest.mark.parametrize(
    ("fields", "budget"),
    [({"max_tokens": 7}, 7), ({"thinking": {"type": "enabled", "budget_tokens": 8}}, 8), ({"effort": "low"}, None)],
)
def test_the_budget_of_a_thought(fields: Any, budget: int | None) -> None:
    assert translate(TOGGLE, **fields)[0].max_tokens == budget


@pytest.mark.parametrize("kind", ["adaptive", "auto"])
def test_the_hint_names_every_type_of_thinking(kind: str) -> None:
    assert translate(TOGGLE, thinking={"type": kind})[0].template_options == {"enable_thinking": True}
    with pytest.raises(InvalidRequest) as caught:
        translate(TOGGLE, thinking={"type": "much"})
    assert kind in caught.value.hint


@pytest.mark.parametrize("options", [{"thinks": False}, {"renders": True}])
def test_a_budget_that_cannot_be_kept_is_named(options: Any) -> None:
    switches, _, ignored = translate(None, max_tokens=5, **options)
    assert switches.max_tokens is None and "max_reasoning_tokens" in ignored


def test_a_remote_server_gets_the_effort() -> None:
    switches, _, ignored = translate(None, renders=True, effort="low", enable_thinking=True)
    assert switches.extras == {"reasoning_effort": "low"} and list(ignored) == ["enable_thinking"]


@pytest.mark.parametrize(
    "thinking",
    [{"type": "maybe"}, {}, {"type": "enabled", "budget_tokens": "5"}, {"type": "enabled", "budget_tokens": -1}],
)
def test_an_invalid_thinking_is_refused(thinking: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        translate(TOGGLE, thinking=thinking)
    assert caught.value.param == "thinking"
