"""Small JSON values that match a schema: the fake engine's guided output. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from enginebay.errors import InvalidRequest

_SOFT_MAX_DEPTH = 12  # beyond it, lists stay empty and recursive alternatives are avoided
_HARD_MAX_DEPTH = 200  # deeper than any schema that passes validation
_MAX_SIZE = 100_000  # of an instance, in values and characters


def build_instance(schema: Any) -> Any:
    """Return a value that matches the schema, always the same. Ignores string patterns and formats."""
    try:
        return _InstanceBuilder(schema).build(schema, 0)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
        raise InvalidRequest(
            f"the fake engine cannot read the schema: {type(problem).__name__}", "simplify it", param="guided_json"
        ) from None


class _InstanceBuilder:
    def __init__(self, root: Any) -> None:
        self.root = root
        self.size = 0

    def build(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping):
            return {}
        if depth > _HARD_MAX_DEPTH:
            raise InvalidRequest("no finite value matches the schema", param="guided_json")
        self.add_size(1)
        if "$ref" in schema:
            return self.build(self.resolve(schema["$ref"]), depth + 1)
        if "const" in schema:
            return self.copy_value(schema["const"])
        if schema.get("enum"):
            return self.copy_value(schema["enum"][0])
        for keyword in ("anyOf", "oneOf"):
            if schema.get(keyword):
                options = schema[keyword]
                nulls = [option for option in options if isinstance(option, Mapping) and option.get("type") == "null"]
                return self.build(nulls[0] if depth > _SOFT_MAX_DEPTH and nulls else options[0], depth + 1)
        if schema.get("allOf"):
            merged: dict[str, Any] = {}
            for part in schema["allOf"]:
                if isinstance(part, Mapping):
                    merged |= self.resolve(part["$ref"]) if "$ref" in part else part
            return self.build(merged, depth + 1)
        return self.build_typed_value(schema, depth)

    def build_typed_value(self, schema: Mapping[str, Any], depth: int) -> Any:
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
            self.add_size(int(schema.get("minLength", 0)))
            return ("fake" * (int(schema.get("minLength", 0)) // 4 + 1))[: int(schema.get("maxLength", 2**31))]
        if kind in ("integer", "number"):
            low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
            return low if low <= schema.get("maximum", low) else schema["maximum"]
        return False if kind == "boolean" else None

    def copy_value(self, value: Any) -> Any:
        self.add_size(len(json.dumps(value)))
        return value

    def add_size(self, size: int) -> None:
        self.size += size
        if self.size > _MAX_SIZE:
            raise InvalidRequest(
                "the smallest value that matches the schema is too large for the fake engine",
                "require fewer properties and items",
                param="guided_json",
            )

    def resolve(self, reference: str) -> Any:
        target = self.root
        for part in reference.removeprefix("#").strip("/").split("/"):
            if part:
                name = unquote(part).replace("~1", "/").replace("~0", "~")
                target = target[int(name) if isinstance(target, list) else name]
        return target
