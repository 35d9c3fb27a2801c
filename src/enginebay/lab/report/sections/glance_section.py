"""The headline panels: which engine leads, by how much, at what energy, and whether the difference is significant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.lab.measures.flat_figures import better_direction
from enginebay.lab.report.engine_pairs import EnginePair, group_by_workload
from enginebay.lab.report.figure_format import (
    add_unit_to_title,
    format_number,
    format_ratio,
    infer_unit,
    pick_column_unit,
)
from enginebay.lab.report.manifest_access import get_section
from enginebay.lab.report.markup import Html, h, join_html, render_badge, render_swatch
from enginebay.lab.report.report_metrics import METRIC_TITLES
from enginebay.lab.report.report_points import ReportContent, ReportPoint
from enginebay.lab.statistics.confidence_intervals import ConfidenceInterval
from enginebay.lab.validity.verdict import worst_status

# The first measured metric of each row is shown.
HEADLINE_METRICS = (
    ("output_tokens_per_s",),
    ("ttft_s.p95", "ttft_s.median"),
    ("tpot_s.median",),
    ("j_per_output_token",),
)
MAX_PANEL_ROWS = 6  # engines per panel; the results table lists all


def render_glance(report: ReportContent, pairs: Sequence[EnginePair]) -> Html:
    """Render a panel for each headline metric, all at one load."""
    points, reliable = _pick_workload(report, pairs)
    title = points[0].workload.label
    if len({run.model for run in report.runs}) > 1:
        title = f"{points[0].group.runs[0].model}, {title}"
    return join_html(
        h("h3", f"At a glance: {title} ", render_badge(worst_status(point.status for point in points))),
        h(
            "div",
            *(_render_panel(_pick_metric(keys, points), points, pairs) for keys in HEADLINE_METRICS),
            class_="panels",
        ),
        h("p", _describe_panels(report, points, reliable), class_="note"),
    )


def _pick_workload(report: ReportContent, pairs: Sequence[EnginePair]) -> tuple[list[ReportPoint], int]:
    """Return the points at the load with the most reliable comparisons (the heaviest on a tie), and their number."""

    def rank(points: list[ReportPoint]) -> tuple[int, int, float]:
        reliable = sum(pair.comparison["valid"] for pair in pairs if pair.a in points)
        usable = sum(point.status != "invalid" for point in points)
        return reliable, usable, points[0].workload.requested or 0.0

    best = max(group_by_workload(report.points), key=rank)
    return best, rank(best)[0]


def _describe_panels(report: ReportContent, points: Sequence[ReportPoint], reliable: int) -> str:
    text = "Means over cycles with 95% confidence intervals."
    if len(points) > 1:
        text += (
            " “1.20 × [1.10, 1.30]” is the ratio of the paired runs. "
            "It is significant if the interval of the difference excludes 0."
        )
    if len(group_by_workload(report.points)) > 1:
        chosen = "heaviest load with the most valid comparisons" if reliable else "heaviest load"
        text += f" This is the {chosen}; see the results for the others."
    return text


def _pick_metric(keys: Sequence[str], points: Sequence[ReportPoint]) -> str:
    """Return the first metric that every point has, else that any has, else the first."""
    for quantifier in (all, any):
        for key in keys:
            if quantifier(key in point.figures for point in points):
                return key
    return keys[0]


def _render_panel(key: str, points: Sequence[ReportPoint], pairs: Sequence[EnginePair]) -> Html:
    measured = sorted((point for point in points if key in point.figures), key=lambda point: _rank_key(point, key))
    if not measured:
        absent = h("p", h("strong", "Not measured"))
        why = h("p", _explain_absence(key, points), " ", h("a", "Missing measures", href="#absent"), class_="quiet")
        return h("div", h("h4", METRIC_TITLES[key]), absent, why, class_="panel")
    notes = _note_rivals(key, measured, pairs)
    factor, unit = pick_column_unit([point.figures[key].estimate for point in measured], infer_unit(key))
    largest = max(max(point.figures[key].estimate, point.figures[key].high or 0.0) for point in measured) or 1.0
    rows = [_render_row(point, key, factor, largest, notes.get(point.name)) for point in measured[:MAX_PANEL_ROWS]]
    more = len(measured) - MAX_PANEL_ROWS
    return h(
        "div",
        h("h4", add_unit_to_title(METRIC_TITLES[key], unit)),
        h("p", _render_conclusion(key, measured, notes)),
        h("ul", *rows, class_="plain"),
        h("p", f"{more} more in the results", class_="quiet") if more > 0 else None,
        class_="panel",
    )


def _rank_key(point: ReportPoint, key: str) -> tuple[bool, float]:
    """Sort the best first, invalid ones last."""
    estimate = point.figures[key].estimate
    return point.status == "invalid", -estimate if better_direction(key) == "higher" else estimate


def _explain_absence(key: str, points: Sequence[ReportPoint]) -> str:
    for name in (key, key.partition(".")[0], "energy_j"):
        for run in (run for point in points for run in point.group.runs):
            if why := get_section(run, "measures", "absent").get(name):
                return f"{str(why).capitalize()}."
    return ""


def _note_rivals(key: str, measured: Sequence[ReportPoint], pairs: Sequence[EnginePair]) -> dict[str, tuple[bool, str]]:
    """For each valid rival of the leader, return whether the lead is significant, and a note on it."""
    leader, *others = measured
    rivals = [point for point in others if point.status != "invalid"]
    return {rival.name: _note_rival(key, leader, rival, pairs) for rival in rivals}


def _note_rival(key: str, leader: ReportPoint, rival: ReportPoint, pairs: Sequence[EnginePair]) -> tuple[bool, str]:
    pair = next((pair for pair in pairs if {pair.a.name, pair.b.name} == {leader.name, rival.name}), None)
    figure: Mapping[str, Any] | None = None if pair is None else pair.comparison["figures"].get(key)
    if pair is None or figure is None:
        return False, "not compared in pairs"
    if not pair.comparison["valid"]:
        return False, f"not reliable: {pair.comparison['problems'][0]}"
    if not figure["differs"]:
        return False, str(figure["outlook"])
    estimate, interval = _format_leader_ratio(figure["ratio"], pair.b.name == leader.name)
    return True, f"{leader.series.label} has {estimate} {interval} of this"


def _format_leader_ratio(ratio: Mapping[str, Any] | None, leader_is_b: bool) -> tuple[str, str]:
    if ratio is None or not ratio["estimate"]:
        return "another multiple", ""
    estimate, low, high = ratio["estimate"], ratio["low"], ratio["high"]
    if not leader_is_b:
        estimate, low, high = 1 / estimate, 1 / high if high else None, 1 / low if low else None
    return format_ratio(estimate, low, high)


def _render_conclusion(key: str, measured: Sequence[ReportPoint], notes: Mapping[str, tuple[bool, str]]) -> Html:
    leader = measured[0]
    if leader.status == "invalid":
        return h("strong", "Invalid: must not be published")
    if not notes:
        return h("span", "the only comparable number" if len(measured) > 1 else "")
    if all(significant for significant, _ in notes.values()):
        return join_html(
            h("strong", leader.series.label), f" is {'highest' if better_direction(key) == 'higher' else 'lowest'}"
        )
    return h("strong", "Inconclusive")


def _render_row(point: ReportPoint, key: str, factor: float, largest: float, note: tuple[bool, str] | None) -> Html:
    interval = point.figures[key]
    value: Html = join_html(format_number(interval.estimate * factor), _render_interval(interval, factor))
    invalid = point.status == "invalid"
    return h(
        "li",
        h("span", render_swatch(point.series.number), point.series.label, class_="name"),
        None if point.status == "valid" else render_badge(point.status),
        h("s", value, title="from an invalid run", class_="number") if invalid else h("span", value, class_="number"),
        _render_bar(point, interval, largest),
        None if note is None else h("small", note[1]),
    )


def _render_interval(interval: ConfidenceInterval, factor: float) -> Html | None:
    if interval.low is None or interval.high is None:
        return None
    return h("small", f" [{format_number(interval.low * factor)}, {format_number(interval.high * factor)}]")


def _render_bar(point: ReportPoint, interval: ConfidenceInterval, largest: float) -> Html:
    """Render a decorative bar; the number is in the text."""
    end = 100 * max(0.0, interval.estimate) / largest
    whisker = None
    if interval.low is not None and interval.high is not None:
        whisker = h(
            "line",
            x1=f"{100 * max(0.0, interval.low) / largest:.2f}",
            x2=f"{100 * interval.high / largest:.2f}",
            y1=4,
            y2=4,
        )
    style = "hollow" if point.status == "invalid" else "solid"
    return h(
        "svg",
        h("rect", width=f"{end:.2f}", height=8, class_=style),
        whisker,
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        class_=f"bar c{point.series.number % 8}",
        aria_hidden="true",
    )
