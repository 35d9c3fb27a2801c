"""The `replicas` key of a model: how many copies of it run, and when their number changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from enginebay.config.entries.config_entry import ConfigEntry
from enginebay.config.entries.value_coercion import InvalidValue, get_unit, parse_unit
from enginebay.contract import Setting

MAX_REPLICAS = 256
_IDLE_S = 300.0
_SECONDS = get_unit("idle_s", Setting("float", ""))


@dataclass(frozen=True, slots=True)
class ReplicaPolicy:
    """`replicas: n` has n copies while the model is loaded. With a mapping, their number follows the load."""

    minimum: int = 1  # while the model is loaded; 0: the last one, too, is unloaded when idle
    maximum: int = 1
    target_running: int | None = None  # running requests per replica; None: what the engine runs at once
    idle_s: float | None = None  # before a replica is unloaded; None: a fixed number, see the model's `idle_s`

    def list_numbers(self) -> range:
        """Return the numbers of the replicas beyond the first."""
        return range(2, self.maximum + 1)

    @property
    def is_fixed(self) -> bool:
        return self.idle_s is None


def parse_replicas(value: Any) -> ReplicaPolicy:
    """Return the policy. Raises `InvalidValue`."""
    if not isinstance(value, Mapping):
        count = _read_number("replicas", value, 1, MAX_REPLICAS)
        return ReplicaPolicy(count, count)
    unknown = [name for name in value if name not in _FIELDS]
    if unknown:
        raise InvalidValue(f"unknown key {str(unknown[0])[:60]!r}; available: {', '.join(_FIELDS)}")
    fields = {name: _FIELDS[name](item) for name, item in value.items() if item is not None}
    minimum = fields.get("min", 1)
    maximum = fields.get("max", max(1, minimum))
    if minimum > maximum:
        raise InvalidValue(f"min is {minimum}, but max is {maximum}; min must not exceed max")
    return ReplicaPolicy(minimum, maximum, fields.get("target_running"), fields.get("idle_s", _IDLE_S))


def _read_number(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValue(f"{name}: expected a whole number, got {str(value)[:60]!r}")
    if not low <= value <= high:
        raise InvalidValue(f"{name} is {value}; it must be from {low} to {high}")
    return value


def _read_seconds(value: Any) -> float:
    seconds = parse_unit(_SECONDS, ConfigEntry(value)).value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise InvalidValue(f"idle_s: expected seconds, 0 or more, got {str(value)[:60]!r}")
    return float(seconds)


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "min": lambda value: _read_number("min", value, 0, MAX_REPLICAS),
    "max": lambda value: _read_number("max", value, 1, MAX_REPLICAS),
    "target_running": lambda value: _read_number("target_running", value, 1, 1_000_000),
    "idle_s": _read_seconds,
}
