from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from enginebay.contract import Guided, Sampling, parse_sampling
from enginebay.contract.sampling_parser import _PARSERS
from enginebay.errors import InvalidRequest


def test_every_parameter_can_be_read() -> None:
    assert set(_PARSERS) == {field.name for field in fields(Sampling)}


def test_values_of_json_become_parameters() -> None:
    given = {
        "temperature": 1,
        "top_k": 5.0,
        "stop": "x",
        "stop_token_ids": [1, 2],
        "logit_bias": {"7": -1},
        "seed": None,
    }
    assert parse_sampling({**given, "guided": {"json": {"type": "object"}}}) == Sampling(
        temperature=1.0,
        top_k=5,
        stop=("x",),
        stop_token_ids=(1, 2),
        logit_bias={7: -1.0},
        guided=Guided(json='{"type": "object"}'),
    )
    assert parse_sampling({"guided": {"choice": ["a", "b"]}}).guided == Guided(choice=("a", "b"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"), ("temperature", True), ("temperature", float("nan")), ("n", 1.5), ("n", "1"), ("max_tokens", []),
        ("stop", [1]), ("stop", 5), ("stop_token_ids", ["a"]), ("logit_bias", [1]), ("logit_bias", {"a": 1}), ("ignore_eos", 1),
        ("guided", "json"), ("guided", {"xml": "a"}), ("guided", {"regex": 5}), ("temperature", 9),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_sampling({name: value})
    assert refusal.value.param == name


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(InvalidRequest, match="temprature") as refusal:
        parse_sampling({"temprature": 1})
    assert "temperature" in refusal.value.hint
