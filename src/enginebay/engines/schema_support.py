"""Refuse JSON schemas of which xgrammar ignores a part: the output would not satisfy them."""

from __future__ import annotations

import json
from typing import Any

from enginebay.contract import Guided
from enginebay.errors import Unsupported
from enginebay.util.json_schema_keywords import VALUE_KEYWORDS

# Say nothing of a value, so they may stand beside allOf.
_ANNOTATIONS = VALUE_KEYWORDS - {"const", "enum"} | {
    "title", "description", "deprecated", "readOnly", "writeOnly", "$schema", "$id", "$comment", "$defs", "definitions",
}  # fmt: skip


def check_schema_support(guided: Guided) -> None:
    """Raise `Unsupported` if this constraint is a schema that xgrammar would follow only in part."""
    if guided.json is None or not ('"allOf"' in guided.json or '"uniqueItems"' in guided.json):
        return
    pending: list[Any] = [json.loads(guided.json)]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            _check_keywords(value)
            pending += [child for name, child in value.items() if name not in VALUE_KEYWORDS]


def _check_keywords(schema: dict[str, Any]) -> None:
    if schema.get("uniqueItems") is True:
        raise _make_error("uniqueItems", "remove it")
    members = schema.get("allOf")
    if not isinstance(members, list):
        return  # absent, or the name of a property
    if len(members) > 1 or not schema.keys() - {"allOf"} <= _ANNOTATIONS:
        raise _make_error("allOf beside other schemas", "merge them into one schema")


def _make_error(problem: str, hint: str) -> Unsupported:
    return Unsupported(f"this engine cannot enforce {problem} in a schema", hint, param="guided_json")
