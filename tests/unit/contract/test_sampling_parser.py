from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from enginebay.contract import Guided, Sampling, parse_sampling
from enginebay.contract.sampling_parser import _PARSERS
from enginebay.errors import InvalidRequest


def test_every_parameter_has_a_parser() -> None:
    assert set(_PARSERS) == {field.name for field in fields(Sampling)}


def test_json_values_are_parsed() -> None:
    values = {
        "temperature": 1,
        "top_k": 5.0,
        "stop": "x",
        "stop_token_ids": [1, 2],
        "logit_bias": {"7": -1},
        "seed": None,
    }
    assert parse_sampling({**values, "guided": {"json": {"type": "object"}}}) == Sampling(
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
def test_errors_name_the_parameter(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_sampling({name: value})
    assert caught.value.param == name


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InvalidRequest, match="temprature") as caught:
        parse_sampling({"temprature": 1})
    assert "temperature" in caught.value.hint
