"""Expands a sweep into every combination of its grids' values. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from enginebay.config.entries.config_entry import ConfigEntry, ConfigProblem
from enginebay.config.sections.experiment_section import STUDY_WIDE_KEYS
from enginebay.errors import ConfigError

MAX_POINTS = 1000

_EXAMPLE = "for example sweep: {vllm.max_num_seqs: [32, 64], batching.batch_size: [1, 8]}"


def expand_sweep(sweep: Mapping[str, Any] | list[Any] | None) -> list[dict[str, Any]]:
    """Return the changes of each point by dotted key, the last key varying fastest. No sweep is one point without changes.

    Raises `ConfigError` if it is not a grid or has more than `MAX_POINTS` points.
    """
    grids = [_parse_grid(grid) for grid in (sweep if sweep and isinstance(sweep, list) else [sweep or {}])]
    count = sum(prod(map(len, grid.values())) for grid in grids)
    if count > MAX_POINTS:
        raise ConfigError(
            f"the sweep has {count} points; the maximum is {MAX_POINTS}", "list fewer values or fewer keys"
        )
    unique: dict[str, dict[str, Any]] = {}
    for grid in grids:
        for values in product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            unique.setdefault(fingerprint_changes(point), point)
    return list(unique.values())


def fingerprint_changes(changes: Mapping[str, Any]) -> str:
    """Return a fingerprint of the changes, independent of their order. Distinguishes 1 from true."""
    return json.dumps(sorted(changes.items()), default=str)


def find_sweep_problems(
    sweep: ConfigEntry, check: Callable[[Mapping[str, Any]], Iterable[ConfigProblem]]
) -> list[ConfigProblem]:
    """Return the problems of the sweep as a whole, else those that `check` finds in each single value."""
    try:
        points = expand_sweep(sweep.value)
    except ConfigError as error:
        return [ConfigProblem(sweep.key_path, f"{error.message}; {error.hint}", sweep.origin)]
    single = {fingerprint_changes({key: value}): {key: value} for point in points for key, value in point.items()}
    problems = (problem for changes in single.values() for problem in check(changes))
    return [replace(problem, key=f"{sweep.key_path}.{problem.key}", origin=sweep.origin) for problem in problems]


def _parse_grid(data: Any) -> dict[str, list[Any]]:
    """Return the values by dotted key. Sections may nest; a single value is a list of one."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"expected a grid of values, got {str(data)[:60]!r}", _EXAMPLE)
    grid: dict[str, list[Any]] = {}
    for key, values in _iter_leaves(data, ""):
        if key in grid:
            raise ConfigError(f"the sweep lists {key} twice", "put all its values into one list")
        if key.removeprefix("inference.").split(".")[0] in STUDY_WIDE_KEYS:
            raise ConfigError(f"{key} applies to the whole study and cannot be swept", "remove it from the sweep")
        if not values:
            raise ConfigError(f"the sweep has no values for {key}", _EXAMPLE)
        grid[key] = values
    return grid


def _iter_leaves(section: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, list[Any]]]:
    for key, value in section.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _iter_leaves(value, f"{name}.")
        elif isinstance(value, list):
            yield name, value
        else:
            yield name, [] if value is None or isinstance(value, Mapping) else [value]
