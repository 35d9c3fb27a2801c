"""A sweep written out: every combination of the values that its grids list. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

from enginebay.config.experiment import OF_THE_STUDY
from enginebay.config.tree import Entry, Problem
from enginebay.errors import ConfigError

MAX_POINTS = 1000

_FORM = "for example sweep: {vllm.max_num_seqs: [32, 64], batching.batch_size: [1, 8]}"


def expand(sweep: Mapping[str, Any] | list[Any] | None) -> list[dict[str, Any]]:
    """The changes of each point by dotted key, the last key varying fastest. No sweep is one point without changes.

    Raises `ConfigError` when it is not a grid, or has more than `MAX_POINTS` points.
    """
    grids = [_grid(one) for one in (sweep if sweep and isinstance(sweep, list) else [sweep or {}])]
    count = sum(prod(map(len, grid.values())) for grid in grids)
    if count > MAX_POINTS:
        raise ConfigError(f"the sweep has {count} points, allowed is {MAX_POINTS}", "list fewer values, or fewer keys")
    once: dict[str, dict[str, Any]] = {}
    for grid in grids:
        for values in product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            once.setdefault(fingerprint(point), point)
    return list(once.values())


def fingerprint(changes: Mapping[str, Any]) -> str:
    """Equal for the same changes, whatever their order; 1 and true are not the same."""
    return json.dumps(sorted(changes.items()), default=str)


def sweep_problems(sweep: Entry, check: Callable[[Mapping[str, Any]], Iterable[Problem]]) -> list[Problem]:
    """What is wrong with it: as a whole, else with any of its values alone, as `check` says."""
    try:
        points = expand(sweep.value)
    except ConfigError as error:
        return [Problem(sweep.place, f"{error.message}; {error.hint}", sweep.origin)]
    single = {fingerprint({key: value}): {key: value} for point in points for key, value in point.items()}
    found = (problem for one in single.values() for problem in check(one))
    return [Problem(f"{sweep.place}.{problem.key}", problem.message, sweep.origin) for problem in found]


def _grid(given: Any) -> dict[str, list[Any]]:
    """The values to try by dotted key; sections may be nested, and a single value is a list of one."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"a sweep holds grids, not {str(given)[:60]!r}", _FORM)
    grid: dict[str, list[Any]] = {}
    for key, values in _leaves(given, ""):
        if key in grid:
            raise ConfigError(f"the sweep has {key} twice", "list all its values in one place")
        if key.removeprefix("inference.").split(".")[0] in OF_THE_STUDY:
            raise ConfigError(f"{key} is the same in the whole study and cannot be swept", "leave it out of the sweep")
        if not values:
            raise ConfigError(f"the sweep has no values for {key}", _FORM)
        grid[key] = values
    return grid


def _leaves(given: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, list[Any]]]:
    for key, value in given.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, list):
            yield name, value
        else:
            yield name, [] if value is None or isinstance(value, Mapping) else [value]
