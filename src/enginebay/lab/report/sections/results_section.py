"""Results table: one row per engine and load, means over cycles with 95% intervals."""

from __future__ import annotations

from enginebay.lab.report.figure_format import (
    add_unit_to_title,
    format_interval,
    format_number,
    infer_unit,
    pick_column_unit,
)
from enginebay.lab.report.markup import (
    Html,
    h,
    join_html,
    render_badge,
    render_details,
    render_section,
    render_swatch,
    render_table,
)
from enginebay.lab.report.report_metrics import METRIC_TITLES, TABLE_METRICS
from enginebay.lab.report.report_points import ReportContent, ReportPoint

Cells = list[Html | str | None]


def render_results(report: ReportContent) -> Html:
    shown = [key for key in TABLE_METRICS if any(key in point.figures for point in report.points)]
    units = {key: pick_column_unit(_list_estimates(report, key), infer_unit(key)) for key in shown}
    rows = [_make_row(point, units) for point in sorted(report.points, key=_workload_order)]
    head: list[Html | str] = [
        "engine",
        "load",
        "verdict",
        *(add_unit_to_title(METRIC_TITLES[key], unit) for key, (_, unit) in units.items()),
    ]
    return render_section(
        "results",
        "Results",
        h(
            "p",
            "Means over the counted runs, with the 95% confidence interval of the mean in brackets (Student t over cycles). A "
            "single run has no interval. Struck-through figures come from invalid runs.",
        ),
        render_table(
            head, rows, "Throughput, latency and energy by engine and load", id="results-table", class_="pinned"
        ),
        h("button", "Copy table", type="button", class_="copy", data_copy="results-table"),
        render_details("All measures", _render_all(report)),
    )


def _list_estimates(report: ReportContent, key: str) -> list[float]:
    return [point.figures[key].estimate for point in report.points if key in point.figures]


def _workload_order(point: ReportPoint) -> tuple[str, float, str, int]:
    """Sort by load, so that comparable engines are adjacent."""
    load = point.workload
    return load.unit, -1.0 if load.requested is None else load.requested, load.label, point.series.number


def _make_row(point: ReportPoint, units: dict[str, tuple[float, str]]) -> Cells:
    cells: Cells = [
        join_html(render_swatch(point.series.number), point.series.label),
        point.workload.label,
        join_html(render_badge(point.status), h("small", point.describe_runs())),
    ]
    return cells + [_render_number(point, key, factor) for key, (factor, _) in units.items()]


def _render_number(point: ReportPoint, key: str, factor: float) -> Html | None:
    interval = point.figures.get(key)
    if interval is None:
        return None
    ends = None
    if interval.low is not None and interval.high is not None:
        ends = h("small", f"[{format_number(interval.low * factor)}, {format_number(interval.high * factor)}]")
    return _mark_invalid(point, join_html(format_number(interval.estimate * factor), ends))


def _mark_invalid(point: ReportPoint, text: Html | str) -> Html:
    return h("s", text, title="from an invalid run") if point.status == "invalid" else h("span", text)


def _render_all(report: ReportContent) -> Html:
    """Render every measured number, one column per point."""
    keys = dict.fromkeys(key for point in report.points for key in point.figures)
    rows: list[Cells] = [[h("code", key), *(_render_any(point, key) for point in report.points)] for key in keys]
    head: list[Html | str] = [
        "measure",
        *(join_html(point.name, " ", render_badge(point.status)) for point in report.points),
    ]
    return render_table(head, rows, "All measures", class_="pinned")


def _render_any(point: ReportPoint, key: str) -> Html | None:
    interval = point.figures.get(key)
    return None if interval is None else _mark_invalid(point, format_interval(interval, infer_unit(key)))
