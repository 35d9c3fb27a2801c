"""Engine settings as flat rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.lab.measures.parity import flatten_settings

# Keys of the workload, not of the engine.
WORKLOAD_KEYS = frozenset(
    {
        "profile",
        "limits",
        "workload",
        "traffic_simulation",
        "num_cycles",
        "random_seed",
        "sweep",
        "engines",
        "slo",
        "warmup",
        "parity",
        "price_per_hour",
        "num_input_prompts",
    }
)


def select_engine_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the engine, without the workload."""
    return flatten_settings({key: value for key, value in config.items() if key not in WORKLOAD_KEYS})


def find_differing(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names whose values differ between columns, in order of appearance."""
    names = dict.fromkeys(name for column in columns for name in column)
    return [name for name in names if len({repr(column.get(name)) for column in columns}) > 1]


def format_setting(value: Any) -> str:
    """Format a setting's value as in a config."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ", ".join(format_setting(item) for item in value) or "none"
    return str(value)
