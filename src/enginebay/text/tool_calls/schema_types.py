"""Types unquoted values by their JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from enginebay.text.tool_calls.json_scanner import is_json

NULL_LITERALS = ("null", "None")  # these models' chat templates write null as Python does

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_MAX_DEPTH = 16  # of nested references and alternatives; more is likely a cycle


def find_property_schema(parameters: Mapping[str, Any], name: str) -> Any:
    """Return the schema of one argument, or None if the tool does not describe it."""
    properties = parameters.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return parameters.get("additionalProperties")


def collect_allowed_types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema names, through references and alternatives; empty if none."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    kind = schema.get("type")
    kinds = kind if isinstance(kind, (list, tuple)) else (kind,)
    types = {kind for kind in kinds if isinstance(kind, str)}
    if not types:
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        types = {_get_json_type(value) for value in values} if _is_list(values) else set()
    for choice in _ALTERNATIVES:
        if _is_list(schema.get(choice)):
            for option in schema[choice]:
                types |= collect_allowed_types(option, root, depth + 1)
    if isinstance(schema.get("$ref"), str):
        types |= collect_allowed_types(_resolve_reference(schema["$ref"], root), root, depth + 1)
    return frozenset(types)


def to_json(value: str, types: frozenset[str]) -> str:
    """Return a value as JSON text, by the most specific of the types that fits."""
    bare = value.strip()
    if "null" in types and bare in NULL_LITERALS:
        return "null"
    if "integer" in types and _INTEGER.fullmatch(bare):
        return bare
    if "number" in types and _NUMBER.fullmatch(bare):
        return bare
    if "boolean" in types and bare.lower() in ("true", "false"):
        return bare.lower()
    if "object" in types and bare[:1] == "{" and is_json(bare):
        return bare
    if "array" in types and bare[:1] == "[" and is_json(bare):
        return bare
    if not types or "string" in types or not is_json(bare):
        return json.dumps(value, ensure_ascii=False)
    return bare


def _resolve_reference(reference: str, root: Mapping[str, Any]) -> Any:
    """Return what a reference within the schema points to, or None."""
    if not reference.startswith("#"):
        return None
    target: Any = root
    for part in reference[1:].split("/")[1:]:
        target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
    return target


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _get_json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = ((int, "integer"), (float, "number"), (str, "string"), (Mapping, "object"))
    return next((name for kind, name in names if isinstance(value, kind)), "array")
