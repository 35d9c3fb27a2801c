"""Makes a JSON schema one that llama.cpp takes. Pure.

Its compiler of schemas, llguidance, refuses a `format` that it does not know. In JSON Schema such a format is only a
remark, so it is left out. And where it allows white space a small model may write nothing else until it has no tokens left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.util.json_schema_keywords import SCHEMA_MAP_KEYWORDS, VALUE_KEYWORDS

KNOWN_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"}
)  # each tried with xllamacpp 2026.10.11549

_FORMATTING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def to_llguidance_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`{}` means any object."""
    return {"x-guidance": _FORMATTING, **drop_unknown_formats(schema or {"type": "object"})}


def drop_unknown_formats(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without the formats that the library does not know. One that is no text stays: it is a mistake."""
    return {key: _copy_keyword(key, value) for key, value in schema.items() if not _is_unknown_format(key, value)}


def _is_unknown_format(key: str, value: Any) -> bool:
    return key == "format" and isinstance(value, str) and value not in KNOWN_FORMATS


def _copy_keyword(key: str, value: Any) -> Any:
    """What stands under a keyword. Under one that is not known there may be schemas too: a `$ref` can point anywhere."""
    if key in VALUE_KEYWORDS:
        return value
    if key in SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
        return {name: _copy_value(one) for name, one in value.items()}
    return _copy_value(value)


def _copy_value(value: Any) -> Any:
    if isinstance(value, dict):
        return drop_unknown_formats(value)
    return [_copy_value(one) for one in value] if isinstance(value, list) else value
