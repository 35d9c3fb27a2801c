"""Coerces and validates values against their declared settings. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from enginebay.config.entries.config_entry import ConfigEntry
from enginebay.contract import Setting
from enginebay.util.number_format import parse_duration, parse_size
from enginebay.util.text_format import find_nearest

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
    if setting.choices and _is_other_type(types, entry):
        raise InvalidValue(_explain_choices(entry.value, setting.choices))
    value = _coerce_type(types, entry)
    if setting.choices and not any(_is_same_value(value, choice) for choice in setting.choices):
        raise InvalidValue(_explain_choices(value, setting.choices))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_range(setting, value)
    return value


@dataclass(frozen=True, slots=True)
class ValueUnit:
    """How values of keys with a suffix may be written as text."""

    suffix: str
    parse: Callable[[str], float | None]
    expected: str
    pattern: str  # for the JSON schema
    example: str


_UNITS = (
    ValueUnit(
        "_s", parse_duration, "seconds, or a duration such as 10m", r"^-?([0-9.]+ ?(ms|s|min|m|h|d)? ?)+$", "10m"
    ),
    ValueUnit("_bytes", parse_size, "bytes, or a size such as 4GiB", r"^[0-9.]+ ?([KMGTkmgt][Ii]?)?[Bb]?$", "4GiB"),
)


def get_unit(name: str, setting: Setting) -> ValueUnit | None:
    """Return the unit in which a key accepts text such as `10m` or `4GiB`, by the end of its name."""
    if "str" in setting.type.split("|"):
        return None
    return next((unit for unit in _UNITS if name.endswith(unit.suffix)), None)


def parse_unit(unit: ValueUnit | None, entry: ConfigEntry) -> ConfigEntry:
    """Return the entry with `10m` as seconds or `4GiB` as bytes. Raises `InvalidValue` for another text."""
    if unit is None or not isinstance(entry.value, str):
        return entry
    value = unit.parse(entry.value)
    if value is None:
        raise InvalidValue(f"expected {unit.expected}, got {quote_value(entry.value)}")
    return replace(entry, value=int(value) if value == int(value) else value)


def build_example(settings: Mapping[str, Setting]) -> str:
    """Return a mapping with one of these settings, as YAML."""
    if not settings:
        return "{}"
    name, setting = next(iter(settings.items()))
    value = _get_example_value(name.rpartition(".")[2], setting)
    for part in reversed(name.split(".")):
        value = f"{{{part}: {value}}}"
    return value


def _get_example_value(name: str, setting: Setting) -> str:
    chosen = next((value for value in (*setting.choices, *setting.tune, setting.default) if value is not None), None)
    if chosen is not None:
        return _format_value(chosen)
    if (unit := get_unit(name, setting)) is not None:
        return unit.example
    by_type = {"bool": "true", "int": _format_number(max(setting.minimum or 1, 1)), "float": "0.5"}
    return by_type.get(setting.type.split("|")[0], "...")


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


def _is_other_type(types: list[str], entry: ConfigEntry) -> bool:
    """Return whether a file holds a value that no choice can equal, such as `true` for a text."""
    kinds: dict[str, Any] = {"bool": bool, "int": int, "float": (int, float), "str": str, "map": dict, "list": list}
    return entry.raw is None and not any(isinstance(entry.value, kinds.get(name, object)) for name in types)


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
    near = find_nearest(str(value).lower(), [name.lower() for name in names])
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
