"""What the script draws: compact, and thinned where there is much of it."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from enginebay.lab.report.curves import TITLES, curves, short
from enginebay.lab.report.metrics import ENERGIES, LATENCIES, PLOTTED, THROUGHPUTS, described
from enginebay.lab.report.points import Point, Report
from enginebay.lab.report.source import cycle
from enginebay.lab.report.timeline import timeline
from enginebay.lab.runs.reader import Run
from enginebay.lab.statistics.intervals import Interval


def page_data(report: Report) -> dict[str, Any]:
    """Everything that the plots need."""
    return {
        "metrics": {key: described(key) for key in PLOTTED},
        "throughputs": _measured(report, THROUGHPUTS),
        "latencies": _measured(report, LATENCIES),
        "energies": _measured(report, ENERGIES),
        "distributions": TITLES,
        "series": [one.label for one in report.series],
        "points": [_point(one) for one in report.points],
        "runs": [_run(point, run) for point in report.points for run in point.group.runs],
    }


def _measured(report: Report, keys: tuple[str, ...]) -> list[str]:
    return [key for key in keys if any(key in point.figures for point in report.points)]


def _point(point: Point) -> dict[str, Any]:
    return {
        "series": point.series.number,
        "load": point.load.label,
        "asked": point.load.asked,
        "unit": point.load.unit,
        "status": point.status,
        "note": point.note(),
        "stats": {key: _spread(point.figures[key]) for key in PLOTTED if key in point.figures},
        "curves": curves(point.group.counted),
    }


def _spread(found: Interval) -> list[float | None]:
    return [None if one is None else short(one) for one in (found.estimate, found.low, found.high)]


def _run(point: Point, run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "series": point.series.number,
        "load": point.load.label,
        "cycle": cycle(run),
        "status": run.status,
        **timeline(run),
    }


def embed(data: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element or start markup."""
    text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(data: Any) -> Any:
    """JSON knows no NaN or infinity: they become null, and the plot has a gap there."""
    if isinstance(data, float):
        return data if isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(one) for key, one in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(one) for one in data]
    return data
