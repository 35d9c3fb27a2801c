"""Instances of a schema: bounded, whatever the schema asks for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from enginebay.engines.fake.schema_instance import build_instance
from enginebay.errors import InvalidRequest
from tests.hostile import corpus_guided


def test_an_instance_of_an_ordinary_schema() -> None:
    instance = build_instance(corpus_guided.TEN_PROPERTIES)
    assert instance["role"] == "admin" and instance["address"] == {"city": "fake"}


@pytest.mark.parametrize(
    "schema",
    [
        corpus_guided.make_required_tree(8, 8),
        {"type": "array", "minItems": 20_000, "items": {"type": "array", "minItems": 20_000}},
        {"type": "array", "minItems": 20_000, "items": {"const": "x" * 10_000}},
        {"type": "array", "minItems": 20_000, "items": {"type": "string", "minLength": 20_000}},
    ],
)
def test_a_schema_that_asks_for_a_huge_value_is_refused_in_little_time(schema: Any) -> None:
    began = time.process_time()
    with pytest.raises(InvalidRequest, match="too large") as caught:
        build_instance(schema)
    assert caught.value.param == "guided_json" and time.process_time() - began < 2


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "minimum": "a", "maximum": 1},
        {"$ref": "#/x"},
        {"$defs": {"a": 1}, "properties": {"b": {"$ref": 5}}},
    ],
)
def test_a_schema_that_makes_no_sense_is_the_clients_fault(schema: Any) -> None:
    with pytest.raises(InvalidRequest):
        build_instance(schema)


def test_references_into_lists_and_with_escapes() -> None:
    schema = {"x y": [{"const": 7}], "type": "object", "properties": {"a": {"$ref": "#/x%20y/0"}}}
    assert build_instance(schema) == {"a": 7}
