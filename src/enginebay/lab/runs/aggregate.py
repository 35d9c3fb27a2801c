"""The cycles of a point as one number each, with its 95% interval. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from enginebay.lab.runs.points import Point, one_engine, points
from enginebay.lab.runs.reader import Run
from enginebay.lab.statistics.cycles import cycle_intervals


def aggregate(runs: Sequence[Run], allow_mixed_engines: bool = False) -> list[dict[str, Any]]:
    """One entry for each point: what it is, its verdict, and the mean of every figure over its runs."""
    if not allow_mixed_engines:
        one_engine(runs)
    return [_aggregated(point) for point in points(runs, mixed=allow_mixed_engines)]


def _aggregated(point: Point) -> dict[str, Any]:
    mixed = len(point.engines) > 1
    intervals = cycle_intervals([run.measures for run in point.counted])
    return {
        **point.described(),
        # An average over engines is of nothing that exists, whatever its runs are worth.
        "verdict": "invalid" if mixed else point.status,
        "mixed_engines": mixed,
        "figures": {name: asdict(interval) for name, interval in intervals.items()},
    }
