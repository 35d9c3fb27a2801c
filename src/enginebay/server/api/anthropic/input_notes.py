"""What the response's headers say of a request's fields, and how errors describe a client's value. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enginebay.errors import InvalidRequest

_MAX_NOTES = 24  # a header has room for more, but clients choose the names
_UNSAFE = re.compile(r"[^\w.\[\]-]", re.ASCII)
_CACHE_CONTROL = "cache_control"


@dataclass(slots=True)
class InputNotes:
    """Ends in x-enginebay-ignored and x-enginebay-translated: field, and why or what instead."""

    ignored: dict[str, str] = field(default_factory=dict)
    translated: dict[str, str] = field(default_factory=dict)

    def ignore(self, name: str, reason: str = "") -> None:
        if len(self.ignored) < _MAX_NOTES:
            self.ignored.setdefault(_UNSAFE.sub("?", name[:64]), reason)

    def translate(self, name: str, meaning: str) -> None:
        self.translated.setdefault(name, meaning)

    def ignore_others(self, value: Mapping[str, Any], known: frozenset[str], kind: str) -> None:
        """Ignore the fields of an object that are not known."""
        for name, content in value.items():
            if name in known or content is None:
                continue
            if name == _CACHE_CONTROL:
                self.ignore(_CACHE_CONTROL, "the engine decides what it caches")
            else:
                self.ignore(f"{kind}.{name}", "unknown")


def describe_value(value: Any) -> str:
    """Return a short description of a client's value for a message."""
    if value is None:
        return "missing"
    if isinstance(value, (str, int, float)):
        return repr(value)[:60]
    return "an object" if isinstance(value, Mapping) else "a list"


def read_string(item: Mapping[str, Any], key: str, where: str, param: str = "messages") -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}.{key} is {describe_value(value)}", "send a string", param=param)
    return value
