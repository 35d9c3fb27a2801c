"""A sweep written out: every combination of the values that its grids list. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

from enginebay.config.entries.config_entry import ConfigEntry, ConfigProblem
from enginebay.config.sections.experiment_section import STUDY_WIDE_KEYS
from enginebay.errors import ConfigError

MAX_POINTS = 1000

_EXAMPLE = "for example sweep: {vllm.max_num_seqs: [32, 64], batching.batch_size: [1, 8]}"


def expand_sweep(sweep: Mapping[str, Any] | list[Any] | None) -> list[dict[str, Any]]:
    """The changes of each point by dotted key, the last key varying fastest. No sweep is one point without changes.

    Raises `ConfigError` when it is not a grid, or has more than `MAX_POINTS` points.
    """
    grids = [_parse_grid(one) for one in (sweep if sweep and isinstance(sweep, list) else [sweep or {}])]
    count = sum(prod(map(len, grid.values())) for grid in grids)
    if count > MAX_POINTS:
        raise ConfigError(f"the sweep has {count} points, allowed is {MAX_POINTS}", "list fewer values, or fewer keys")
    once: dict[str, dict[str, Any]] = {}
    for grid in grids:
        for values in product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            once.setdefault(fingerprint_changes(point), point)
    return list(once.values())


def fingerprint_changes(changes: Mapping[str, Any]) -> str:
    """Equal for the same changes, whatever their order; 1 and true are not the same."""
    return json.dumps(sorted(changes.items()), default=str)


def find_sweep_problems(
    sweep: ConfigEntry, check: Callable[[Mapping[str, Any]], Iterable[ConfigProblem]]
) -> list[ConfigProblem]:
    """What is wrong with it: as a whole, else with any of its values alone, as `check` says."""
    try:
        points = expand_sweep(sweep.value)
    except ConfigError as error:
        return [ConfigProblem(sweep.key_path, f"{error.message}; {error.hint}", sweep.origin)]
    single = {fingerprint_changes({key: value}): {key: value} for point in points for key, value in point.items()}
    found = (problem for one in single.values() for problem in check(one))
    return [ConfigProblem(f"{sweep.key_path}.{problem.key}", problem.message, sweep.origin) for problem in found]


def _parse_grid(given: Any) -> dict[str, list[Any]]:
    """The values to try by dotted key; sections may be nested, and a single value is a list of one."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"a sweep holds grids, not {str(given)[:60]!r}", _EXAMPLE)
    grid: dict[str, list[Any]] = {}
    for key, values in _iter_leaves(given, ""):
        if key in grid:
            raise ConfigError(f"the sweep has {key} twice", "list all its values in one place")
        if key.removeprefix("inference.").split(".")[0] in STUDY_WIDE_KEYS:
            raise ConfigError(f"{key} is the same in the whole study and cannot be swept", "leave it out of the sweep")
        if not values:
            raise ConfigError(f"the sweep has no values for {key}", _EXAMPLE)
        grid[key] = values
    return grid


def _iter_leaves(given: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, list[Any]]]:
    for key, value in given.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _iter_leaves(value, f"{name}.")
        elif isinstance(value, list):
            yield name, value
        else:
            yield name, [] if value is None or isinstance(value, Mapping) else [value]
