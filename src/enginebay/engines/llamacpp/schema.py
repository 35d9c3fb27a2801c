"""Makes a JSON schema one that llama.cpp takes. Pure.

Its compiler of schemas, llguidance, refuses a `format` that it does not know. In JSON Schema such a format is only a
remark, so it is left out. And where it allows white space a small model may write nothing else until it has no tokens left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.text.schema_keywords import NAMED, VALUES

KNOWN_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"}
)  # each tried with xllamacpp 2026.10.11549

_GUIDANCE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def as_the_library_takes_it(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`{}` means any object."""
    return {"x-guidance": _GUIDANCE, **without_unknown_formats(schema or {"type": "object"})}


def without_unknown_formats(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without the formats that the library does not know. One that is no text stays: it is a mistake."""
    return {key: _copied(key, value) for key, value in schema.items() if not _unknown_format(key, value)}


def _unknown_format(key: str, value: Any) -> bool:
    return key == "format" and isinstance(value, str) and value not in KNOWN_FORMATS


def _copied(key: str, value: Any) -> Any:
    """What stands under a keyword. Under one that is not known there may be schemas too: a `$ref` can point anywhere."""
    if key in VALUES:
        return value
    if key in NAMED and isinstance(value, dict):
        return {name: _part(one) for name, one in value.items()}
    return _part(value)


def _part(value: Any) -> Any:
    if isinstance(value, dict):
        return without_unknown_formats(value)
    return [_part(one) for one in value] if isinstance(value, list) else value
