"""Coerces and validates values against their declared settings. Pure."""

from __future__ import annotations

import math
from difflib import get_close_matches
from typing import Any

from enginebay.config.entries.config_entry import ConfigEntry
from enginebay.contract import Setting

TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "map": "a mapping",
    "list": "a list",
}


class InvalidValue(Exception):
    """The value is invalid. The message follows the key's name."""


def coerce_value(setting: Setting, entry: ConfigEntry) -> Any:
    """Return the value in the setting's type; null means unset. Raises `InvalidValue`."""
    if entry.value is None:
        return None
    types = setting.type.split("|")
    value = _coerce_type(types, entry)
    if setting.choices and not any(_is_same_value(value, choice) for choice in setting.choices):
        raise InvalidValue(_explain_choices(value, setting.choices))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_range(setting, value)
    return value


def split_list(value: Any) -> Any:
    """Convert a list or comma-separated text to a tuple. Drops empty items; null stays null."""
    if value is None:
        return None
    items = value.split(",") if isinstance(value, str) else value
    stripped = (item.strip() if isinstance(item, str) else item for item in items)
    return tuple(item for item in stripped if item != "")


def _coerce_type(types: list[str], entry: ConfigEntry) -> Any:
    value = entry.to_plain()
    if isinstance(value, bool):
        if "bool" in types:
            return value
    elif isinstance(value, int) and "int" in types:
        return value
    elif isinstance(value, (int, float)) and "float" in types:
        if not math.isfinite(value):
            raise InvalidValue(f"expected a finite number, got {value}")
        return float(value)
    elif any(isinstance(value, kind) and name in types for name, kind in (("str", str), ("map", dict), ("list", list))):
        return value
    return _coerce_text(types, entry)


def _coerce_text(types: list[str], entry: ConfigEntry) -> Any:
    """Coerce the text of a variable: the shell has no types, so 0 and 1 may be booleans and text may look like a number."""
    if entry.raw is not None and not isinstance(entry.value, (dict, list)):
        if "bool" in types and entry.raw in ("0", "1"):
            return entry.raw == "1"
        if "str" in types:
            return entry.raw
    expected = " or ".join(TYPE_NAMES.get(name, name) for name in types)
    hint = "; quote it" if "str" in types and isinstance(entry.value, (bool, int, float)) else ""
    raise InvalidValue(f"expected {expected}, got {quote_value(entry.value)}{hint}")


def _check_range(setting: Setting, value: float) -> None:
    low, high = setting.minimum, setting.maximum
    if (low is None or value >= low) and (high is None or value <= high):
        return
    if low is None:
        raise InvalidValue(f"expected at most {_format_number(high)}, got {_format_number(value)}")
    allowed = f"at least {_format_number(low)}" if high is None else f"{_format_number(low)} to {_format_number(high)}"
    raise InvalidValue(f"expected {allowed}, got {_format_number(value)}")


def _explain_choices(value: Any, choices: tuple[Any, ...]) -> str:
    names = [_format_value(choice) for choice in choices]
    near = get_close_matches(str(value).lower(), [name.lower() for name in names], n=1, cutoff=0.75)
    hint = f"; did you mean {next(name for name in names if name.lower() == near[0])}?" if near else ""
    allowed = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
    return f"expected {allowed}, got {quote_value(value)}{hint}"


def _is_same_value(value: Any, choice: Any) -> bool:
    """Compare values, but not `True == 1`."""
    return isinstance(value, bool) == isinstance(choice, bool) and bool(value == choice)


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def quote_value(value: Any) -> str:
    """Format a value for an error message, text in quotes."""
    return repr(_format_value(value)) if isinstance(value, str) else _format_value(value)


def _format_number(value: float | None) -> str:
    return f"{value:g}" if isinstance(value, float) and not value.is_integer() else f"{int(value or 0)}"
