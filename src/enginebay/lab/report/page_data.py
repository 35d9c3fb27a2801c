"""Data for the plots, compact and thinned."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from enginebay.lab.report import report_metrics
from enginebay.lab.report.latency_curves import LATENCY_TITLES, build_curves, round_short
from enginebay.lab.report.manifest_access import get_cycle
from enginebay.lab.report.report_points import ReportContent, ReportPoint
from enginebay.lab.report.run_timeline import build_timeline
from enginebay.lab.statistics.confidence_intervals import ConfidenceInterval
from enginebay.lab.store.run_reader import Run


def build_page_data(report: ReportContent) -> dict[str, Any]:
    """Return everything that the plots need."""
    return {
        "metrics": {key: report_metrics.describe_metric(key) for key in report_metrics.PLOTTED_METRICS},
        "throughputs": _list_measured(report, report_metrics.THROUGHPUT_METRICS),
        "latencies": _list_measured(report, report_metrics.LATENCY_METRICS),
        "energies": _list_measured(report, report_metrics.ENERGY_METRICS),
        "distributions": LATENCY_TITLES,
        "series": [series.label for series in report.series],
        "points": [_point_data(point) for point in report.points],
        "runs": [_run_data(point, run) for point in report.points for run in point.group.runs],
    }


def _list_measured(report: ReportContent, keys: tuple[str, ...]) -> list[str]:
    return [key for key in keys if any(key in point.figures for point in report.points)]


def _point_data(point: ReportPoint) -> dict[str, Any]:
    return {
        "series": point.series.number,
        "load": point.workload.label,
        "asked": point.workload.requested,
        "unit": point.workload.unit,
        "status": point.status,
        "note": point.describe_runs(),
        "stats": {
            key: _interval_data(point.figures[key]) for key in report_metrics.PLOTTED_METRICS if key in point.figures
        },
        "curves": build_curves(point.group.counted),
    }


def _interval_data(interval: ConfidenceInterval) -> list[float | None]:
    values = (interval.estimate, interval.low, interval.high)
    return [None if value is None else round_short(value) for value in values]


def _run_data(point: ReportPoint, run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "series": point.series.number,
        "load": point.workload.label,
        "cycle": get_cycle(run),
        "status": run.status,
        **build_timeline(run),
    }


def embed_json(data: Any) -> str:
    """Return JSON for a script element: nothing in it can end the element or start markup."""
    text = json.dumps(_replace_non_finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _replace_non_finite(data: Any) -> Any:
    """Replace NaN and infinity by null, which JSON lacks; the plot shows a gap."""
    if isinstance(data, float):
        return data if isfinite(data) else None
    if isinstance(data, dict):
        return {key: _replace_non_finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_replace_non_finite(value) for value in data]
    return data
