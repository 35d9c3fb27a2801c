"""Engines against each other at the same load, as `bay results compare` does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from enginebay.lab.report.points import Point, Report
from enginebay.lab.runs.comparison import compare_points
from enginebay.lab.runs.points import same_load

EVERY_PAIR = 4  # points at one load; where there are more, each is compared with the first only


@dataclass(frozen=True)
class Pair:
    """What can be said of `b` against `a`; `found` is as `compare_points` gives it."""

    a: Point
    b: Point
    found: dict[str, Any]


def pairs(report: Report) -> list[Pair]:
    """Every comparison the page makes."""
    return [Pair(a, b, compare_points(a.group, b.group)) for a, b in _rivals(report.points)]


def by_load(points: Sequence[Point]) -> list[list[Point]]:
    """Points of which the same was asked, and which may so be compared."""
    loads: list[list[Point]] = []
    for point in points:
        same = next((one for one in loads if same_load(one[0].group, point.group)), None)
        if same is None:
            loads.append([point])
        else:
            same.append(point)
    return loads


def _rivals(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    found: list[tuple[Point, Point]] = []
    for alike in by_load(points):
        every = list(combinations(alike, 2))
        found += every if len(alike) <= EVERY_PAIR else every[: len(alike) - 1]
    return found
