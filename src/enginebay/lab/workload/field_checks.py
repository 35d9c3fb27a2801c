"""Checks of config values; errors name the full key."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from enginebay.errors import ConfigError
from enginebay.util.text_format import find_nearest


def check_positive_number(name: str, value: Any, *, zero: bool = False) -> float:
    """Return a finite number above zero, or from zero if `zero` is set."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number, not {value!r}", f"use a number above 0 for {name}", param=name)
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        bound = "0 or above" if zero else "above 0"
        raise ConfigError(f"{name} must be {bound} and finite, not {value!r}", f"raise {name}", param=name)
    return float(value)


def check_whole_number(name: str, value: Any, minimum: int = 1) -> int:
    """Return an integer of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, not {value!r}", f"write {name} as an integer", param=name)
    if value < minimum:
        raise ConfigError(f"{name} must be at least {minimum}, not {value}", f"raise {name}", param=name)
    return value


def check_choice(name: str, value: Any, known: Collection[str]) -> str:
    """Return the value if it is one of the known words."""
    if isinstance(value, str) and value in known:
        return value
    raise ConfigError(
        f"{name}: unknown value {value!r}",
        f"{_suggest_key(str(value), known)}choose from {_join_keys(known)}",
        param=name,
    )


def check_bool(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigError(f"{name} must be true or false, not {value!r}", "write true or false", param=name)


def check_keys(where: str, data: Any, known: Collection[str], required: Collection[str] = ()) -> dict[str, Any]:
    """Return the mapping if it has no unknown and no missing required key."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a mapping, not {data!r}", f"write {where} as keys and values", param=where)
    for key in data:
        if key not in known:
            hint = f"{_suggest_key(str(key), known)}{where} takes {_join_keys(known) or 'no keys'}"
            raise ConfigError(f"{where} has no key {key!r}", hint, param=f"{where}.{key}")
    for key in required:
        if data.get(key) is None:
            raise ConfigError(f"{where} needs {key}", f"add {key} to {where}", param=f"{where}.{key}")
    return dict(data)


def _suggest_key(value: str, known: Collection[str]) -> str:
    near = find_nearest(value, known)
    return f"did you mean {near[0]!r}? " if near else ""


def _join_keys(known: Collection[str]) -> str:
    return ", ".join(known)
