"""Small JSON values that match a schema: the fake engine's guided output. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.errors import InvalidRequest

_SOFT_MAX_DEPTH = 12  # beyond it, lists stay empty and recursive alternatives are avoided
_HARD_MAX_DEPTH = 200  # deeper than any schema that passes validation
_MAX_VALUES = 10_000  # references and minItems multiply


def build_instance(schema: Any) -> Any:
    """Return a value that matches the schema, always the same. Ignores string patterns and formats."""
    try:
        return _InstanceBuilder(schema).build(schema, 0)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise InvalidRequest("a keyword of the schema has a value of the wrong type", param="guided_json") from None


class _InstanceBuilder:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._values = 0

    def build(self, schema: Any, depth: int) -> Any:
        self._values += 1
        if self._values > _MAX_VALUES:
            raise InvalidRequest(f"every match of the schema has over {_MAX_VALUES} values", param="guided_json")
        if not isinstance(schema, Mapping):
            return {}
        if depth > _HARD_MAX_DEPTH:
            raise InvalidRequest("no finite value matches the schema", param="guided_json")
        if "$ref" in schema:
            return self.build(self._resolve(schema["$ref"]), depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        for keyword in ("anyOf", "oneOf"):
            if schema.get(keyword):
                return self.build(_select_option(schema[keyword], depth), depth + 1)
        if schema.get("allOf"):
            return self.build(self._merge(schema["allOf"]), depth + 1)
        return self._build_typed(schema, depth)

    def _merge(self, parts: list[Any]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for part in parts:
            if isinstance(part, Mapping):
                merged |= self._resolve(part["$ref"]) if "$ref" in part else part
        return merged

    def _build_typed(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object")
        kind = kind[0] if isinstance(kind, list) else kind
        if kind == "object":
            properties = schema.get("properties") or {}
            names = schema.get("required", ()) if depth > _SOFT_MAX_DEPTH else properties
            return {name: self.build(properties.get(name, {}), depth + 1) for name in names}
        if kind == "array":
            min_items = int(schema.get("minItems", 0 if depth > _SOFT_MAX_DEPTH else 1))
            max_items = int(schema.get("maxItems", min_items))
            return [self.build(schema.get("items", {}), depth + 1) for _ in range(min(min_items, max_items))]
        if kind == "string":
            return ("fake" * (int(schema.get("minLength", 0)) // 4 + 1))[: int(schema.get("maxLength", 2**31))]
        if kind in ("integer", "number"):
            low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
            return low if low <= schema.get("maximum", low) else schema["maximum"]
        return False if kind == "boolean" else None

    def _resolve(self, reference: str) -> Any:
        target = self._root
        for part in reference.removeprefix("#").strip("/").split("/"):
            if part:
                name = part.replace("~1", "/").replace("~0", "~")
                target = target[int(name)] if isinstance(target, list) else target[name]
        return target


def _select_option(options: list[Any], depth: int) -> Any:
    nulls = [option for option in options if isinstance(option, Mapping) and option.get("type") == "null"]
    return nulls[0] if depth > _SOFT_MAX_DEPTH and nulls else options[0]
