"""Engine comparisons at the same load, as in `bay results compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from enginebay.lab.report.report_points import ReportContent, ReportPoint
from enginebay.lab.statistics.run_comparison import compare_groups
from enginebay.lab.statistics.run_groups import has_same_workload

MAX_ALL_PAIRS = 4  # points at one load; with more, each is compared with the first only


@dataclass(frozen=True)
class EnginePair:
    """Comparison of `b` against `a`, as returned by `compare_groups`."""

    a: ReportPoint
    b: ReportPoint
    comparison: dict[str, Any]


def compare_engine_pairs(report: ReportContent) -> list[EnginePair]:
    """Return every comparison of the page."""
    return [EnginePair(a, b, compare_groups(a.group, b.group)) for a, b in _list_rivals(report.points)]


def group_by_workload(points: Sequence[ReportPoint]) -> list[list[ReportPoint]]:
    """Group points that ran the same workload and so may be compared."""
    groups: list[list[ReportPoint]] = []
    for point in points:
        group = next((other for other in groups if has_same_workload(other[0].group, point.group)), None)
        if group is None:
            groups.append([point])
        else:
            group.append(point)
    return groups


def _list_rivals(points: Sequence[ReportPoint]) -> list[tuple[ReportPoint, ReportPoint]]:
    rivals: list[tuple[ReportPoint, ReportPoint]] = []
    for group in group_by_workload(points):
        pairs = list(combinations(group, 2))
        rivals += pairs if len(group) <= MAX_ALL_PAIRS else pairs[: len(group) - 1]
    return rivals
