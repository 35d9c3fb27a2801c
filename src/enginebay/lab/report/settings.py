"""Settings as flat rows: what was asked, and what each engine really ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.lab.parity import flat_settings

# These say how hard and how often, not how the engine was set.
LOAD_KEYS = frozenset(
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


def engine_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that make one engine differ from another, without the load."""
    return flat_settings({key: value for key, value in config.items() if key not in LOAD_KEYS})


def differing(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names whose values are not the same in all columns, in the order they first appear."""
    names = dict.fromkeys(name for column in columns for name in column)
    return [name for name in names if len({repr(column.get(name)) for column in columns}) > 1]


def shown(value: Any) -> str:
    """A setting's value as a reader would write it in a config."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ", ".join(shown(one) for one in value) or "none"
    return str(value)
