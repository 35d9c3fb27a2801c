"""Engines against each other at the same load, as `bay results compare` does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from enginebay.lab.report.report_points import ReportContent, ReportPoint
from enginebay.lab.statistics.run_comparison import compare_groups
from enginebay.lab.statistics.run_groups import has_same_workload

MAX_ALL_PAIRS = 4  # points at one load; where there are more, each is compared with the first only


@dataclass(frozen=True)
class EnginePair:
    """What can be said of `b` against `a`; `found` is as `compare_points` gives it."""

    a: ReportPoint
    b: ReportPoint
    comparison: dict[str, Any]


def compare_engine_pairs(report: ReportContent) -> list[EnginePair]:
    """Every comparison the page makes."""
    return [EnginePair(a, b, compare_groups(a.group, b.group)) for a, b in _list_rivals(report.points)]


def group_by_workload(points: Sequence[ReportPoint]) -> list[list[ReportPoint]]:
    """Points of which the same was asked, and which may so be compared."""
    loads: list[list[ReportPoint]] = []
    for point in points:
        same = next((one for one in loads if has_same_workload(one[0].group, point.group)), None)
        if same is None:
            loads.append([point])
        else:
            same.append(point)
    return loads


def _list_rivals(points: Sequence[ReportPoint]) -> list[tuple[ReportPoint, ReportPoint]]:
    found: list[tuple[ReportPoint, ReportPoint]] = []
    for alike in group_by_workload(points):
        every = list(combinations(alike, 2))
        found += every if len(alike) <= MAX_ALL_PAIRS else every[: len(alike) - 1]
    return found
