"""Settings as flat rows: what was asked, and what each engine really ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.lab.measures.parity import flatten_settings

# These say how hard and how often, not how the engine was set.
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
    """The settings that make one engine differ from another, without the load."""
    return flatten_settings({key: value for key, value in config.items() if key not in WORKLOAD_KEYS})


def find_differing(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names whose values are not the same in all columns, in the order they first appear."""
    names = dict.fromkeys(name for column in columns for name in column)
    return [name for name in names if len({repr(column.get(name)) for column in columns}) > 1]


def format_setting(value: Any) -> str:
    """A setting's value as a reader would write it in a config."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ", ".join(format_setting(one) for one in value) or "none"
    return str(value)
