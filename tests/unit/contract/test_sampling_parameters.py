from __future__ import annotations

from dataclasses import fields

import pytest

from enginebay.contract import (
    NEUTRAL,
    RANGES,
    GenerateRequest,
    Guided,
    Sampling,
    collect_requested_parameters,
    honours,
    parameters,
    refuses,
    translates,
)
from enginebay.contract.negotiate import negotiate
from enginebay.errors import InvalidRequest, Unsupported


@pytest.mark.parametrize("name", sorted(RANGES))
def test_values_outside_the_range_are_refused_by_name(name: str) -> None:
    low, high = RANGES[name]
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidRequest) as caught:
            Sampling(**{name: value})
        assert caught.value.param == name


@pytest.mark.parametrize("name", sorted(RANGES))
def test_both_ends_of_a_range_are_allowed(name: str) -> None:
    for value in RANGES[name]:
        extra = {"best_of": 128} if name == "n" else {}
        assert getattr(Sampling(**{name: value, **extra}), name) == value


def test_contradictions_are_refused() -> None:
    for wrong in (
        {"n": 3, "best_of": 2},
        {"min_tokens": 5, "max_tokens": 4},
        {"stop": ("",)},
        {"logit_bias": {1: 101.0}},
    ):
        with pytest.raises(InvalidRequest):
            Sampling(**wrong)  # type: ignore[arg-type]


def test_unset_means_neutral() -> None:
    sampling = Sampling()
    assert {name: sampling.value(name) for name in NEUTRAL} == NEUTRAL


def test_greedy() -> None:
    assert Sampling(temperature=0).greedy and Sampling(do_sample=False, temperature=1.5).greedy
    assert not Sampling().greedy


def test_guided_takes_exactly_one_constraint() -> None:
    for wrong in ({}, {"json": "{}", "regex": "a"}, {"choice": ()}, {"choice": ("",)}):
        with pytest.raises(InvalidRequest):
            Guided(**wrong)  # type: ignore[arg-type]


def test_every_field_is_a_parameter_that_engines_declare() -> None:
    assert {field.name for field in fields(Sampling)} - {"guided"} <= set(parameters())


def test_neutral_values_do_not_count_as_requested() -> None:
    neutral = Sampling(temperature=1.0, top_k=0, repetition_penalty=1.0, n=1, ignore_eos=False)
    assert collect_requested_parameters(neutral) == {}
    requested = collect_requested_parameters(Sampling(top_k=-1, stop=("a",), guided=Guided(regex="a")), lora="x")
    assert requested == {"top_k": -1, "stop": ("a",), "guided_regex": "a", "lora": "x"}


def test_a_request_has_exactly_one_prompt() -> None:
    for wrong in ({}, {"text": "a", "token_ids": (1,)}, {"text": ""}, {"messages": ()}):
        with pytest.raises(InvalidRequest):
            GenerateRequest(**wrong)  # type: ignore[arg-type]


def test_negotiate_names_what_is_refused_and_what_is_translated() -> None:
    table = {"top_k": translates("off is 0"), "seed": honours(), "num_beams": refuses("best_of")}
    request = GenerateRequest(text="a", sampling=Sampling(top_k=-1, seed=1))
    assert negotiate("some", table, request, {}) == {"top_k": "off is 0"}
    with pytest.raises(Unsupported) as caught:
        negotiate("some", table, GenerateRequest(text="a", sampling=Sampling(num_beams=2)), {})
    assert caught.value.param == "num_beams" and "best_of" in caught.value.hint
    with pytest.raises(Unsupported, match="not with this model"):
        negotiate("some", table, request, {"seed": "not with this model"})
