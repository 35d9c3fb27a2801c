"""Small JSON values that match a schema: the fake engine's guided output. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.errors import InvalidRequest

_SOFT_MAX_DEPTH = 12  # beyond it, lists stay empty and recursive alternatives are avoided
_HARD_MAX_DEPTH = 200  # deeper than any schema that passes validation


def build_instance(schema: Any) -> Any:
    """Return a value that matches the schema, always the same. Ignores string patterns and formats."""
    return _build_instance(schema, schema, 0)


def _build_instance(schema: Any, root: Any, depth: int) -> Any:
    if not isinstance(schema, Mapping):
        return {}
    if depth > _HARD_MAX_DEPTH:
        raise InvalidRequest("no finite value matches the schema", param="guided_json")
    if "$ref" in schema:
        return _build_instance(_resolve_ref(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            options = schema[keyword]
            nulls = [option for option in options if isinstance(option, Mapping) and option.get("type") == "null"]
            return _build_instance(nulls[0] if depth > _SOFT_MAX_DEPTH and nulls else options[0], root, depth + 1)
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
        names = schema.get("required", ()) if depth > _SOFT_MAX_DEPTH else properties
        return {name: _build_instance(properties.get(name, {}), root, depth + 1) for name in names}
    if kind == "array":
        min_items = int(schema.get("minItems", 0 if depth > _SOFT_MAX_DEPTH else 1))
        max_items = int(schema.get("maxItems", min_items))
        return [_build_instance(schema.get("items", {}), root, depth + 1) for _ in range(min(min_items, max_items))]
    if kind == "string":
        return ("fake" * (int(schema.get("minLength", 0)) // 4 + 1))[: int(schema.get("maxLength", 2**31))]
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        return low if low <= schema.get("maximum", low) else schema["maximum"]
    return False if kind == "boolean" else None


def _resolve_ref(reference: str, root: Any) -> Any:
    target = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            target = target[part.replace("~1", "/").replace("~0", "~")]
    return target
