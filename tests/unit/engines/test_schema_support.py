"""What xgrammar would ignore in a schema is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from enginebay.contract import Guided
from enginebay.engines.schema_support import check_schema_support
from enginebay.errors import Unsupported

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [TEXT, {"type": "integer"}]},
        {"allOf": [True, TEXT]},
        {"type": "object", "properties": {"a": TEXT}, "allOf": [{"required": ["a"]}]},
        {"properties": {"a": {"items": [{"anyOf": [{"allOf": [{}, {}]}]}]}}},
        {"type": "array", "items": TEXT, "uniqueItems": True},
    ],
)
def test_what_would_be_ignored_is_refused(schema: Any) -> None:
    with pytest.raises(Unsupported) as caught:
        check_schema_support(Guided(json=json.dumps(schema)))
    assert caught.value.param == "guided_json"


@pytest.mark.parametrize(
    "schema",
    [
        {"title": "A", "description": "a", "default": None, "allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": TEXT}},
        {"type": "object", "properties": {"allOf": TEXT, "uniqueItems": {"type": "boolean"}}},
        {"enum": [{"allOf": [1, 2]}, {"uniqueItems": True}]},
        {"type": "array", "uniqueItems": False},
        {"anyOf": [TEXT, {"type": "integer"}]},
        True,
    ],
)
def test_the_rest_passes(schema: Any) -> None:
    check_schema_support(Guided(json=json.dumps(schema)))


def test_other_constraints_pass() -> None:
    check_schema_support(Guided(regex='"allOf"'))
