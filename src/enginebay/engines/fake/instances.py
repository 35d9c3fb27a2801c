"""A small JSON value that a schema allows: what the fake engine answers when its output is guided. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.errors import InvalidRequest

_DEEPEST = 12  # beyond it, lists are left empty and alternatives that lead on are avoided
_ENDLESS = 200  # deeper than any schema that is let through


def instance(schema: Any) -> Any:
    """The same value for the same schema. Patterns and formats of texts are not looked at."""
    return _instance(schema, schema, 0)


def _instance(schema: Any, root: Any, depth: int) -> Any:
    if not isinstance(schema, Mapping):
        return {}
    if depth > _ENDLESS:
        raise InvalidRequest("no value of a finite size fits the schema", param="guided_json")
    if "$ref" in schema:
        return _instance(_resolved(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for word in ("anyOf", "oneOf"):
        if schema.get(word):
            options = schema[word]
            simple = [one for one in options if isinstance(one, Mapping) and one.get("type") == "null"]
            return _instance(simple[0] if depth > _DEEPEST and simple else options[0], root, depth + 1)
    if schema.get("allOf"):
        merged: dict[str, Any] = {}
        for part in schema["allOf"]:
            merged |= _resolved(part["$ref"], root) if "$ref" in part else part
        return _instance(merged, root, depth + 1)
    return _of_type(schema, root, depth)


def _of_type(schema: Mapping[str, Any], root: Any, depth: int) -> Any:
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        wanted = schema.get("required", ()) if depth > _DEEPEST else properties
        return {name: _instance(properties.get(name, {}), root, depth + 1) for name in wanted}
    if kind == "array":
        least = int(schema.get("minItems", 0 if depth > _DEEPEST else 1))
        most = int(schema.get("maxItems", least))
        return [_instance(schema.get("items", {}), root, depth + 1) for _ in range(min(least, most))]
    if kind == "string":
        return ("fake" * (int(schema.get("minLength", 0)) // 4 + 1))[: int(schema.get("maxLength", 2**31))]
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        return low if low <= schema.get("maximum", low) else schema["maximum"]
    return False if kind == "boolean" else None


def _resolved(reference: str, root: Any) -> Any:
    found = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            found = found[part.replace("~1", "/").replace("~0", "~")]
    return found
