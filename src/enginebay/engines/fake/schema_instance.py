"""A small JSON value that a schema allows: what the fake engine answers when its output is guided. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.errors import InvalidRequest

_SOFT_MAX_DEPTH = 12  # beyond it, lists are left empty and alternatives that lead on are avoided
_HARD_MAX_DEPTH = 200  # deeper than any schema that is let through


def build_instance(schema: Any) -> Any:
    """The same value for the same schema. Patterns and formats of texts are not looked at."""
    return _build_instance(schema, schema, 0)


def _build_instance(schema: Any, root: Any, depth: int) -> Any:
    if not isinstance(schema, Mapping):
        return {}
    if depth > _HARD_MAX_DEPTH:
        raise InvalidRequest("no value of a finite size fits the schema", param="guided_json")
    if "$ref" in schema:
        return _build_instance(_resolve_ref(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for word in ("anyOf", "oneOf"):
        if schema.get(word):
            options = schema[word]
            simple = [one for one in options if isinstance(one, Mapping) and one.get("type") == "null"]
            return _build_instance(simple[0] if depth > _SOFT_MAX_DEPTH and simple else options[0], root, depth + 1)
    if schema.get("allOf"):
        merged: dict[str, Any] = {}
        for part in schema["allOf"]:
            merged |= _resolve_ref(part["$ref"], root) if "$ref" in part else part
        return _build_instance(merged, root, depth + 1)
    return _build_typed_value(schema, root, depth)


def _build_typed_value(schema: Mapping[str, Any], root: Any, depth: int) -> Any:
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        wanted = schema.get("required", ()) if depth > _SOFT_MAX_DEPTH else properties
        return {name: _build_instance(properties.get(name, {}), root, depth + 1) for name in wanted}
    if kind == "array":
        least = int(schema.get("minItems", 0 if depth > _SOFT_MAX_DEPTH else 1))
        most = int(schema.get("maxItems", least))
        return [_build_instance(schema.get("items", {}), root, depth + 1) for _ in range(min(least, most))]
    if kind == "string":
        return ("fake" * (int(schema.get("minLength", 0)) // 4 + 1))[: int(schema.get("maxLength", 2**31))]
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        return low if low <= schema.get("maximum", low) else schema["maximum"]
    return False if kind == "boolean" else None


def _resolve_ref(reference: str, root: Any) -> Any:
    found = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            found = found[part.replace("~1", "/").replace("~0", "~")]
    return found
