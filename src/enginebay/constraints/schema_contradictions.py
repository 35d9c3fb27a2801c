"""Schemas that contradict themselves. Not every library notices: some enforce one half and ignore the other."""

from __future__ import annotations

from typing import Any

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def find_contradiction(schema: dict[str, Any]) -> tuple[str, str] | None:
    """Return the keyword and the problem of a schema that no value satisfies. Its type, enum and required are well formed."""
    values = _list_values(schema)
    if values is not None and not values:
        return "enum", "does not contain the value of const"
    types = schema.get("type")
    names = types if isinstance(types, list) else [types] if types else None
    if values and names and not any(_is_of_type(value, name) for value in values for name in names):
        return "type", "matches no value of const or enum"
    if names == ["object"] and schema.get("additionalProperties") is False and "patternProperties" not in schema:
        properties = schema.get("properties")
        known = properties if isinstance(properties, dict) else {}
        forbidden = [name for name in schema.get("required", ()) if name not in known]
        if forbidden:
            return "required", f"has {forbidden[0][:40]!r}, which additionalProperties forbids"
    return None


def _list_values(schema: dict[str, Any]) -> list[Any] | None:
    """Return the values that const and enum allow; None if they allow any."""
    listed: list[Any] | None = schema.get("enum")
    if "const" not in schema:
        return listed
    constant = schema["const"]
    return [constant] if listed is None or constant in listed else []


def _is_of_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON_TYPES[name])
