from __future__ import annotations

import json
from typing import Any

import pytest

from enginebay.contract import GenerateRequest, Guided, Sampling
from enginebay.engines.llamacpp.request_body import CompletionAttempt, LlamaBodyBuilder, fold_seed
from enginebay.errors import InvalidRequest, Unsupported

_PROMPT = (7, 8, 7)


def _body(
    attempt: CompletionAttempt | None = None, lora: str | None = None, loras: tuple[str, ...] = (), **sampling: Any
) -> dict[str, Any]:
    request = GenerateRequest(token_ids=_PROMPT, sampling=Sampling(**sampling), lora=lora)
    places = {name: place for place, name in enumerate(loras)}
    return LlamaBodyBuilder(request, 512, places).build(
        attempt or CompletionAttempt((), 16, 1, 0, ban_end_tokens=False)
    )


def test_no_default_of_the_library_is_left() -> None:
    body = _body()
    assert body["samplers"] == ["temperature"] and body["temperature"] == 1.0
    assert body["logit_bias"] == [] and body["ignore_eos"] is False and body["n_predict"] == 16


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"do_sample": False, "temperature": 1.5, "top_k": 40}])
def test_greedy(sampling: dict[str, Any]) -> None:
    body = _body(**sampling)
    assert (body["samplers"], body["temperature"]) == (["temperature"], 0.0)


def test_only_what_is_on_is_in_the_chain_and_in_order() -> None:
    body = _body(temperature=0.7, top_k=-1, top_p=0.9, min_p=0.1, repetition_penalty=1.2)
    assert body["samplers"] == ["penalties", "temperature", "top_p", "min_p"]
    assert (body["repeat_penalty"], body["repeat_last_n"], body["presence_penalty"]) == (1.2, 512, 0.0)
    assert _body(top_k=3)["samplers"] == ["temperature", "top_k"]


def test_the_frequency_penalty_leaves_the_prompt_out() -> None:
    assert _body(frequency_penalty=0.5)["logit_bias"] == [[7, 1.0], [8, 0.5]]
    assert _body(frequency_penalty=0.5, logit_bias={7: -3.0})["logit_bias"] == [[7, -2.0], [8, 0.5]]


def test_end_tokens_are_banned_until_min_tokens() -> None:
    body = _body(CompletionAttempt((1, 2), 5, 1, 0, ban_end_tokens=True), stop_token_ids=(9,), logit_bias={9: 4.0})
    assert body["ignore_eos"] is True and body["logit_bias"] == [[9, False]]
    assert body["prompt"] == [7, 8, 7, 1, 2]


@pytest.mark.parametrize(
    ("seed", "folded"), [(0, 0), (7, 7), (2**32 - 2, 2**32 - 2), (None, 2**32 - 1), (2**32 + 7, 6)]
)
def test_seeds_fold_to_32_bits(seed: int | None, folded: int) -> None:
    assert fold_seed(seed) == folded


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1, 2**32 - 1])
def test_no_seed_becomes_the_random_one(seed: int) -> None:
    assert 0 <= fold_seed(seed) < 2**32 - 1


def test_choices_and_attempts_sample_differently() -> None:
    assert fold_seed(7, 1) != fold_seed(7)


def test_adapters_are_off_unless_chosen() -> None:
    assert "lora" not in _body()
    assert _body(loras=("a", "b"))["lora"] == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 0.0}]
    assert _body(lora="b", loras=("a", "b"))["lora"] == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 1.0}]
    with pytest.raises(InvalidRequest, match="unknown LoRA adapter 'c'"):
        _body(lora="c", loras=("a", "b"))


def test_logprobs_ask_for_at_least_one() -> None:
    assert "n_probs" not in _body()
    assert _body(logprobs=0)["n_probs"] == 1 and _body(logprobs=5)["n_probs"] == 5


def test_guided() -> None:
    schema = _schema_of(_body(guided=Guided(json="{}")))
    assert schema["type"] == "object" and schema["x-guidance"]["whitespace_flexible"] is False
    own = '{"x-guidance": {"whitespace_flexible": true}}'
    assert _schema_of(_body(guided=Guided(json=own))) == json.loads(own)
    assert _body(guided=Guided(choice=("a",)))["grammar"] == "%llguidance {}\nstart: /(?:a)/\n"
    assert _body(guided=Guided(regex="a+"))["grammar"] == "%llguidance {}\nstart: /(?:a+)/\n"
    assert _body(guided=Guided(grammar='root ::= "x"'))["grammar"] == "%llguidance {}\nstart: /(?:(?:x))/\n"
    recursive = 'root ::= "(" root? ")"\n'
    assert _body(guided=Guided(grammar=recursive))["grammar"] == recursive


def _schema_of(body: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(body["grammar"].removeprefix("%llguidance {}\nstart: %json "))
    return schema


def test_a_format_that_the_library_does_not_know_does_not_reach_it() -> None:
    schema = '{"type": "object", "properties": {"n": {"type": "string", "format": "%s"}}}'
    assert _schema_of(_body(guided=Guided(json=schema % "uri")))["properties"] == {"n": {"type": "string"}}
    assert _schema_of(_body(guided=Guided(json=schema % "date")))["properties"]["n"]["format"] == "date"


def test_a_schema_nested_too_deeply_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="too deeply"):
        _body(guided=Guided(json='{"not":' * 800 + "{}" + "}" * 800))


@pytest.mark.parametrize("schema", ["{", "[]", "true"])
def test_a_schema_must_be_an_object(schema: str) -> None:
    with pytest.raises(InvalidRequest):
        _body(guided=Guided(json=schema))


def test_grammars_whose_errors_would_go_unnoticed_are_refused() -> None:
    with pytest.raises(Unsupported):
        _body(guided=Guided(grammar="%llguidance {}\nstart: /a/"))
