"""What the response's headers say of a request's fields, and how errors describe a client's value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enginebay.errors import InvalidRequest
from enginebay.server.api.fields.unknown_fields import note_unknown_field, shorten_name

_MAX_NOTES = 24  # a header has room for more, but clients choose the names
_CACHE_CONTROL = "cache_control"


@dataclass(slots=True)
class InputNotes:
    """Ends in x-enginebay-ignored and x-enginebay-translated: field, and why or what instead."""

    refuses_unknown: bool = False
    ignored: dict[str, str] = field(default_factory=dict)  # as many as there is room for
    translated: dict[str, str] = field(default_factory=dict)
    _unnamed: set[str] = field(default_factory=set)  # ignored, too

    def ignore(self, name: str, reason: str = "") -> None:
        shown = shorten_name(name)
        if shown in self.ignored:
            return
        if len(self.ignored) < _MAX_NOTES:
            self.ignored[shown] = reason
        else:
            self._unnamed.add(shown)

    def list_ignored(self) -> dict[str, str]:
        """Return the ignored fields. The last entry counts those that there is no room for."""
        return {**self.ignored, f"and {len(self._unnamed)} more": ""} if self._unnamed else self.ignored

    def translate(self, name: str, meaning: str) -> None:
        self.translated.setdefault(name, meaning)

    def ignore_others(
        self, value: Mapping[str, Any], known: frozenset[str], kind: str, param: str = "messages"
    ) -> None:
        """Ignore the fields of an object that are not known. Raise `InvalidRequest` for a misspelling, or if all are refused."""
        for name, content in value.items():
            if name in known or content is None:
                continue
            if name == _CACHE_CONTROL:
                self.ignore(_CACHE_CONTROL, "the engine decides what it caches")
            elif self.refuses_unknown or len(self.ignored) < _MAX_NOTES:
                names, strict = tuple(sorted(known)), self.refuses_unknown
                note_unknown_field(name, f"{kind}.{name}", names, self.ignored, strict=strict, param=param)
            else:  # a comparison with all known names would cost too much
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
