"""Request bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from enginebay.contract import EngineSpec, GenerateRequest, Guided, Sampling, Support, parameters
from enginebay.engines.openai.request_body import CHAT_PATH, COMPLETIONS_PATH, OpenAIBodyBuilder
from enginebay.engines.openai.spec import EXTRA_PARAMETERS, SPEC
from enginebay.errors import ContextOverflow, InvalidRequest, RequestError, Unsupported

MESSAGES = ({"role": "user", "content": "hi \ud83d"},)
PLAIN = OpenAIBodyBuilder("m")
EXTRA = OpenAIBodyBuilder("m", extras=True)
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
ALWAYS = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


def _chat(maker: OpenAIBodyBuilder = PLAIN, extras: dict[str, Any] | None = None, **sampling: Any) -> dict[str, Any]:
    request = GenerateRequest(messages=MESSAGES, sampling=Sampling(**sampling), extras=extras or {})
    path, body = maker.build(request)
    assert path == CHAT_PATH
    found: dict[str, Any] = json.loads(body)
    return found


def test_what_is_unset_is_sent_as_neutral() -> None:
    assert _chat() == {**ALWAYS, **NEUTRAL, "messages": [dict(MESSAGES[0])]}


def test_a_server_that_refuses_neutral_values_is_not_sent_them() -> None:
    quiet = OpenAIBodyBuilder("m", extras=True, neutral=False)
    assert _chat(quiet) == {**ALWAYS, "messages": [dict(MESSAGES[0])]}
    assert _chat(quiet, top_p=0.5, top_k=3).items() >= {"top_p": 0.5, "top_k": 3}.items()


def test_everything_of_the_api_is_passed_on() -> None:
    parameters = {"temperature": 0.3, "top_p": 0.9, "presence_penalty": 1.5, "frequency_penalty": -1.0, "max_tokens": 9,
             "stop": ("a", "b"), "seed": 5, "n": 3, "logit_bias": {42: -100.0}}  # fmt: skip
    sent = _chat(**parameters)
    assert sent.items() >= {**parameters, "stop": ["a", "b"], "logit_bias": {"42": -100.0}}.items()


@pytest.mark.parametrize("sampling", [{"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}])
def test_greedy_is_temperature_zero(sampling: dict[str, Any]) -> None:
    assert _chat(**sampling)["temperature"] == 0


def test_the_newer_name_of_max_tokens() -> None:
    sent = _chat(OpenAIBodyBuilder("m", max_tokens_name="max_completion_tokens"), max_tokens=5)
    assert sent["max_completion_tokens"] == 5 and "max_tokens" not in sent


def test_extras_are_sent_where_the_server_takes_them() -> None:
    assert _chat(EXTRA).items() >= {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}.items()
    parameters = {"top_k": 4, "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 2, "stop_token_ids": (7, 8),
             "ignore_eos": True}  # fmt: skip
    assert _chat(EXTRA, **parameters).items() >= {**parameters, "stop_token_ids": [7, 8]}.items()


@pytest.mark.parametrize(
    ("guided", "field"),
    [
        (Guided(regex="a+"), {"structured_outputs": {"regex": "a+"}}),
        (Guided(grammar="root ::= x"), {"structured_outputs": {"grammar": "root ::= x"}}),
        (Guided(choice=("a", "b")), {"structured_outputs": {"choice": ["a", "b"]}}),
        (Guided(json="{}"), {"response_format": {"type": "json_object"}}),
        (
            Guided(json='{"type": "object"}'),
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
                }
            },
        ),
    ],
)
def test_guided_output(guided: Guided, field: dict[str, Any]) -> None:
    assert _chat(EXTRA, guided=guided).items() >= field.items()


def test_tools_are_passed_on_and_nothing_replaces_our_own_fields() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    extras = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    assert _chat(extras=extras).items() >= extras.items()
    assert "tools" not in _chat(extras={"tools": [], "tool_choice": None})
    assert (
        _chat(EXTRA, extras={"stream": False, "model": "x", "chat_template_kwargs": {"a": 1}}).items()
        >= {
            **ALWAYS,
            "chat_template_kwargs": {"a": 1},
        }.items()
    )


def test_what_the_api_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(Unsupported) as caught:
        _chat(extras={"chat_template_kwargs": {}})
    assert caught.value.param == "chat_template_kwargs" and "openai.extras" in caught.value.hint


def _prompt(maker: OpenAIBodyBuilder, request: GenerateRequest) -> dict[str, Any]:
    path, body = maker.build(request)
    assert path == COMPLETIONS_PATH
    found: dict[str, Any] = json.loads(body)
    return found


def test_texts_and_ids_go_to_completions() -> None:
    few = Sampling(max_tokens=4)
    assert (
        _prompt(PLAIN, GenerateRequest(text="once", sampling=few)).items()
        >= {"prompt": "once", "max_tokens": 4}.items()
    )
    assert _prompt(PLAIN, GenerateRequest(token_ids=(5, 6), sampling=few))["prompt"] == [5, 6]


def test_a_prompt_without_a_limit_gets_the_remaining_context() -> None:
    known = OpenAIBodyBuilder("m", context_length=100)
    assert _prompt(known, GenerateRequest(token_ids=(1,) * 30))["max_tokens"] == 70
    assert _prompt(known, GenerateRequest(text="é" * 10))["max_tokens"] == 100 - 20 - 16


@pytest.mark.parametrize(
    ("maker", "request_", "error"),
    [
        (PLAIN, GenerateRequest(text="once"), InvalidRequest),
        (PLAIN, GenerateRequest(token_ids=(1,)), InvalidRequest),
        (OpenAIBodyBuilder("m", context_length=100), GenerateRequest(text="x" * 100), InvalidRequest),
        (OpenAIBodyBuilder("m", context_length=100), GenerateRequest(token_ids=(1,) * 100), ContextOverflow),
        (PLAIN, GenerateRequest(text="x", extras={"tools": [{}]}), Unsupported),
        (PLAIN, GenerateRequest(text="x", sampling=Sampling(max_tokens=1, guided=Guided(json="{}"))), Unsupported),
    ],
)
def test_a_prompt_without_a_known_limit_is_refused(
    maker: OpenAIBodyBuilder, request_: GenerateRequest, error: type[RequestError]
) -> None:
    with pytest.raises(error) as caught:
        maker.build(request_)
    assert caught.value.param


def test_the_spec_declares_everything_and_names_alternatives() -> None:
    assert set(SPEC.request) == set(parameters())
    assert SPEC.remote and SPEC.renders and not SPEC.distributions and not SPEC.module
    for capability in SPEC.request.values():
        assert capability.support is Support.HONOURS or capability.detail
    assert all(SPEC.request[name].support is Support.HONOURS for name in EXTRA_PARAMETERS)
    assert EngineSpec.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC
