"""Adapt a JSON schema to llguidance, llama.cpp's schema compiler. Pure.

llguidance rejects an unknown `format`. In JSON Schema such a format is only an annotation, so it is dropped.
Whitespace is fixed, because a small model may otherwise write whitespace until it runs out of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.util.json_schema_keywords import SCHEMA_MAP_KEYWORDS, VALUE_KEYWORDS

KNOWN_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"}
)  # tested with xllamacpp 2026.10.11549

_FORMATTING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def to_llguidance_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema for llguidance. `{}` means any object."""
    return {"x-guidance": _FORMATTING, **drop_unknown_formats(schema or {"type": "object"})}


def drop_unknown_formats(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy without unknown formats. Keeps a format that is not a string: the library rejects it."""
    return {key: _copy_keyword(key, value) for key, value in schema.items() if not _is_unknown_format(key, value)}


def _is_unknown_format(key: str, value: Any) -> bool:
    return key == "format" and isinstance(value, str) and value not in KNOWN_FORMATS


def _copy_keyword(key: str, value: Any) -> Any:
    """Copy a keyword's value. An unknown keyword may hold schemas too, since a `$ref` can point anywhere."""
    if key in VALUE_KEYWORDS:
        return value
    if key in SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
        return {name: _copy_value(schema) for name, schema in value.items()}
    return _copy_value(value)


def _copy_value(value: Any) -> Any:
    if isinstance(value, dict):
        return drop_unknown_formats(value)
    return [_copy_value(item) for item in value] if isinstance(value, list) else value
