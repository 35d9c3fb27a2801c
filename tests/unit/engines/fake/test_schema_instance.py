"""Instances of schemas that multiply or are malformed."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.engines.fake.schema_instance import build_instance
from enginebay.errors import InvalidRequest


def _tree(levels: int, width: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {f"d{levels}": {"type": "integer"}}
    for level in range(levels):
        properties = {f"p{number}": {"$ref": f"#/$defs/d{level + 1}"} for number in range(width)}
        definitions[f"d{level}"] = {"type": "object", "properties": properties, "required": list(properties)}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


NULLS = {"type": "array", "minItems": 5000, "items": {"type": "null"}}


@pytest.mark.parametrize("schema", [_tree(40, 2), {"type": "array", "minItems": 5000, "items": NULLS}])
def test_a_value_of_too_many_parts_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="values"):
        build_instance(schema)


@pytest.mark.parametrize(
    "schema",
    [{"type": "integer", "minimum": "1"}, {"type": "integer", "exclusiveMinimum": None}, {"$ref": "#/enum/x", "enum": [1]}],
)
def test_a_keyword_of_the_wrong_type_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="wrong type"):
        build_instance(schema)


def test_references_and_booleans_are_followed() -> None:
    assert build_instance({"anyOf": [{"$ref": "#/anyOf/1"}, {"type": "null"}]}) is None
    assert build_instance({"allOf": [True, {"type": "boolean"}]}) is False
