"""The figures: one row for each engine at each load, means over the cycles with 95% intervals."""

from __future__ import annotations

from enginebay.lab.report.figures import spread, unit_of
from enginebay.lab.report.markup import Html, badge, details, h, join, section, table
from enginebay.lab.report.metrics import TABLE, TITLES
from enginebay.lab.report.points import Point, Report


def results(report: Report) -> Html:
    shown = [key for key in TABLE if any(key in point.figures for point in report.points)]
    rows = [_row(point, shown) for point in report.points]
    head: list[Html | str] = ["engine", "load", "verdict", "from", *(TITLES[key] for key in shown)]
    return section(
        "results",
        "Results",
        h(
            "p",
            "Means over the counted runs of a point; in brackets the 95% confidence interval of the mean (Student t over "
            "cycles). One run has no interval. Struck-through figures come from invalid runs.",
        ),
        table(head, rows, "Throughput, latency and energy of each engine at each load", id="results-table"),
        h("button", "Copy the table", type="button", class_="copy", data_copy="results-table"),
        details("All measures", _all(report)),
    )


def _row(point: Point, keys: list[str]) -> list[Html | str | None]:
    cells: list[Html | str | None] = [
        join(h("span", class_=f"swatch c{point.series.number % 8}", aria_hidden="true"), point.series.label),
        point.load.label,
        badge(point.status),
        point.note(),
    ]
    return cells + [_cell(point, key) for key in keys]


def _cell(point: Point, key: str) -> Html | None:
    found = point.figures.get(key)
    if found is None:
        return None
    text = spread(found, unit_of(key))
    return h("s", text, title="from an invalid run") if point.status == "invalid" else h("span", text)


def _all(report: Report) -> Html:
    """Every number that the runs measured, a column for each point."""
    keys = dict.fromkeys(key for point in report.points for key in point.figures)
    rows: list[list[Html | str | None]] = [
        [h("code", key), *(_cell(point, key) for point in report.points)] for key in keys
    ]
    head: list[Html | str] = ["measure", *(join(point.name, " ", badge(point.status)) for point in report.points)]
    return table(head, rows, "All measures")
