"""The figures: one row for each engine at each load, means over the cycles with 95% intervals."""

from __future__ import annotations

from enginebay.lab.report.figures import column_unit, digits, named, spread, unit_of
from enginebay.lab.report.markup import Html, badge, details, h, join, section, swatch, table
from enginebay.lab.report.metrics import TABLE, TITLES
from enginebay.lab.report.points import Point, Report

Cells = list[Html | str | None]


def results(report: Report) -> Html:
    shown = [key for key in TABLE if any(key in point.figures for point in report.points)]
    units = {key: column_unit(_estimates(report, key), unit_of(key)) for key in shown}
    rows = [_row(point, units) for point in sorted(report.points, key=_by_load)]
    head: list[Html | str] = [
        "engine",
        "load",
        "verdict",
        *(named(TITLES[key], unit) for key, (_, unit) in units.items()),
    ]
    return section(
        "results",
        "Results",
        h(
            "p",
            "Means over the counted runs; in brackets the 95% confidence interval of the mean (Student t over cycles). One "
            "run has no interval. Struck-through figures come from invalid runs.",
        ),
        table(
            head,
            rows,
            "Throughput, latency and energy of each engine at each load",
            id="results-table",
            class_="pinned",
        ),
        h("button", "Copy the table", type="button", class_="copy", data_copy="results-table"),
        details("All measures", _all(report)),
    )


def _estimates(report: Report, key: str) -> list[float]:
    return [point.figures[key].estimate for point in report.points if key in point.figures]


def _by_load(point: Point) -> tuple[str, float, str, int]:
    """Engines at one load one below the other, since those may be compared."""
    load = point.load
    return load.unit, -1.0 if load.asked is None else load.asked, load.label, point.series.number


def _row(point: Point, units: dict[str, tuple[float, str]]) -> Cells:
    cells: Cells = [
        join(swatch(point.series.number), point.series.label),
        point.load.label,
        join(badge(point.status), h("small", point.note())),
    ]
    return cells + [_number(point, key, factor) for key, (factor, _) in units.items()]


def _number(point: Point, key: str, factor: float) -> Html | None:
    found = point.figures.get(key)
    if found is None:
        return None
    known = found.low is not None and found.high is not None
    ends = h("small", f"[{_scaled(found.low, factor)}, {_scaled(found.high, factor)}]") if known else None
    return _marked(point, join(_scaled(found.estimate, factor), ends))


def _scaled(value: float | None, factor: float) -> str:
    return "–" if value is None else digits(value * factor)


def _marked(point: Point, text: Html | str) -> Html:
    return h("s", text, title="from an invalid run") if point.status == "invalid" else h("span", text)


def _all(report: Report) -> Html:
    """Every number that the runs measured, a column for each point."""
    keys = dict.fromkeys(key for point in report.points for key in point.figures)
    rows: list[Cells] = [[h("code", key), *(_any(point, key) for point in report.points)] for key in keys]
    head: list[Html | str] = ["measure", *(join(point.name, " ", badge(point.status)) for point in report.points)]
    return table(head, rows, "All measures", class_="pinned")


def _any(point: Point, key: str) -> Html | None:
    found = point.figures.get(key)
    return None if found is None else _marked(point, spread(found, unit_of(key)))
