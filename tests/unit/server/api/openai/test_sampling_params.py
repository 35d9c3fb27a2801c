from __future__ import annotations

import json
from typing import Any

import pytest

from enginebay.config.sections.server_section import GUIDED_KINDS, ServerLimits
from enginebay.contract import Guided, Sampling
from enginebay.errors import InvalidRequest, RequestError, Unsupported
from enginebay.server.api.body_decoder import decode_body
from enginebay.server.api.openai.sampling_params import note_unknown_format_keys, read_constraint, read_sampling
from enginebay.server.api.openai.schemas import ChatBody
from tests.hostile import corpus_guided

LIMITS = ServerLimits()


def make_body(**fields: Any) -> ChatBody:
    return decode_body(
        ChatBody, json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    )


def read(limits: ServerLimits = LIMITS, defaults: dict[str, Any] | None = None, **fields: Any) -> Sampling:
    body = make_body(**fields)
    guided = read_constraint(body, limits).guided
    return read_sampling(body, defaults or {}, limits, max_tokens=None, vocabulary_size=100, guided=guided)


def test_missing_fields_stay_unset() -> None:
    assert read() == Sampling()


def test_the_request_wins_over_the_configuration() -> None:
    found = read(defaults={"temperature": 0.1, "top_p": 0.9}, temperature=0.7)
    assert (found.temperature, found.top_p) == (0.7, 0.9)


def test_every_shared_field_is_copied() -> None:
    values: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.8, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "presence_penalty": 0.3,
        "frequency_penalty": 0.4, "no_repeat_ngram_size": 3, "do_sample": True, "min_tokens": 2, "ignore_eos": True,
        "seed": 7, "n": 2, "best_of": 3, "num_beams": 1, "length_penalty": 1.1, "early_stopping": True,
    }  # fmt: skip
    found = read(**values)
    assert {name: getattr(found, name) for name in values} == values


def test_stop_and_bias() -> None:
    assert read(stop="a").stop == ("a",)
    assert read(stop=["a", "b"]).stop == ("a", "b")
    assert read(logit_bias={"5": -3}).logit_bias == {5: -3.0}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 2000}, "stop"),
        ({"stop_token_ids": list(range(17))}, "stop_token_ids"),
        ({"logit_bias": {str(number): 1 for number in range(1025)}}, "logit_bias"),
        ({"logit_bias": {"100": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"n": 17}, "n"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_choice": ["b"] * 2000}, "guided_choice"),
        ({"guided_grammar": "x" * 70_000}, "guided_grammar"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"guided_json": "{not json"}, "guided_json"),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert caught.value.param == param


def test_the_cap_on_tokens() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_sampling(make_body(), {}, ServerLimits(max_tokens=10), max_tokens=11)
    assert caught.value.param == "max_tokens" and "10" in caught.value.message


def test_a_length_of_minus_one_is_the_whole_context() -> None:
    found = read_sampling(make_body(), {"max_tokens": 5}, LIMITS, max_tokens=-1)
    assert found.max_tokens is None
    assert read_sampling(make_body(), {}, ServerLimits(max_tokens=10), max_tokens=-1).max_tokens == 10


def test_a_length_beyond_every_context_is_not_an_error() -> None:
    assert read_sampling(make_body(), {}, LIMITS, max_tokens=2**62).max_tokens == 10_000_000
    with pytest.raises(InvalidRequest) as caught:
        read_sampling(make_body(), {}, LIMITS, max_tokens=0, max_tokens_param="max_output_tokens")
    assert caught.value.param == "max_output_tokens"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Guided(json='{"type": "object"}')),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string"}}}},
            Guided(json='{"type": "string"}'),
        ),
        ({"guided_json": {"type": "string"}}, Guided(json='{"type": "string"}')),
        ({"guided_json": '{"type": "string"}'}, Guided(json='{"type": "string"}')),
        ({"guided_regex": "[a-z]+"}, Guided(regex="[a-z]+")),
        ({"structured_outputs": {"regex": "[a-z]+"}}, Guided(regex="[a-z]+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Guided(choice=("a", "b"))),
        ({"guided_grammar": 'root ::= "a"'}, Guided(grammar='root ::= "a"')),
    ],
)
def test_constraints(fields: dict[str, Any], expected: Guided | None) -> None:
    assert read(**fields).guided == expected


@pytest.mark.parametrize(
    ("text", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b"{", None),
        (b'{"messages": [{}]}', "model"),
        (b'{"model": "m", "messages": []}', "messages"),
        (b'{"model": "m", "messages": [{}], "temprature": 1}', "temprature"),
        (b'{"model": "m", "messages": [{}], "n": "1"}', "n"),
        (b'{"model": "m", "messages": [{}], "temperature": NaN}', None),
        (b'{"model": "m", "messages": [{}], "stream_options": {"x": 1}}', "stream_options.x"),
        (b'{"model": "\\ud800", "messages": [{}]}', None),
        (b"[" * 100_000, None),
        (b"\xff\xfe", None),
    ],
)
def test_invalid_bodies(text: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_body(ChatBody, text)
    assert caught.value.param == param


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_body(temprature=1)
    assert "temperature" in caught.value.hint


# Constraints that must not reach an engine, and those that must


@pytest.mark.parametrize(("name", "fields"), corpus_guided.REFUSED)
def test_hostile_constraints_are_refused(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert caught.value.param in fields and caught.value.message


@pytest.mark.parametrize(("name", "fields"), corpus_guided.ORDINARY)
def test_ordinary_constraints_pass(name: str, fields: dict[str, Any]) -> None:
    assert read(**fields).guided is not None


@pytest.mark.parametrize(("name", "fields"), corpus_guided.ORDINARY)
def test_each_kind_can_be_turned_off(name: str, fields: dict[str, Any]) -> None:
    param = next(iter(fields))
    kind = "json" if param == "response_format" else param.removeprefix("guided_")
    kinds = tuple(other for other in GUIDED_KINDS if other != kind)
    with pytest.raises(Unsupported) as caught:
        read(limits=ServerLimits(guided=kinds), **fields)
    assert caught.value.param == param and "server.limits.guided" in caught.value.hint
    assert read(limits=ServerLimits(guided=(kind,)), **fields).guided is not None


def test_a_format_of_llama_cpp_has_its_schema_beside_the_type() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    found = read(response_format={"type": "json_object", "schema": schema}).guided
    assert found is not None and found.json is not None and json.loads(found.json) == schema


def test_unknown_keys_of_a_format_are_noted() -> None:
    ignored: dict[str, str] = {}
    note_unknown_format_keys(None, ignored)
    note_unknown_format_keys({"type": "json_schema", "json_schema": {"schema": {}, "zzz": 1}, "yyy": 1}, ignored)
    assert ignored.keys() == {"response_format.yyy", "response_format.json_schema.zzz"}
    with pytest.raises(InvalidRequest, match="schem'") as caught:
        note_unknown_format_keys({"type": "json_object", "schem": {}}, ignored)
    assert caught.value.param == "response_format" and "schema" in caught.value.hint
    for format_keys in ({"type": "text", "zzz": 1}, {"type": "json_schema", "json_schema": {"schema": {}, "zzz": 1}}):
        with pytest.raises(InvalidRequest, match="zzz") as caught:
            note_unknown_format_keys(format_keys, None)  # server.unknown_fields: refuse
        assert caught.value.param is not None and caught.value.param.startswith("response_format")
