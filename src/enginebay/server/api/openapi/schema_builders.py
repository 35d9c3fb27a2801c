"""Helpers to build JSON schemas."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
OBJECT: Schema = {"type": "object"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def const(value: Any) -> Schema:
    return {"const": value}


def enum(*values: Any) -> Schema:
    return {"enum": list(values)}


def array(items: Schema, **keywords: Any) -> Schema:
    return {"type": "array", "items": items, **keywords}


def any_of(*schemas: Schema, **keywords: Any) -> Schema:
    return {"anyOf": list(schemas), **keywords}


def nullable(schema: Schema) -> Schema:
    return any_of(schema, NULL)


def describe(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


def obj(properties: dict[str, Schema], optional: tuple[str, ...] = (), **keywords: Any) -> Schema:
    """Return an object schema. All properties are required except the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, **({"required": required} if required else {}), **keywords}
