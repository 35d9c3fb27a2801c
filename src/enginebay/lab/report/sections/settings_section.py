"""Effective against requested settings of each engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from enginebay.lab.measures.parity import SettingRow, diff_settings
from enginebay.lab.report.manifest_access import get_section
from enginebay.lab.report.markup import Html, h, join_html, render_details, render_section, render_table
from enginebay.lab.report.report_points import ReportContent
from enginebay.lab.report.setting_values import format_setting

Column = Mapping[str, SettingRow]


def render_settings(report: ReportContent) -> Html | None:
    firsts = [series.first for series in report.series]
    columns = [_make_column(run.requested_settings, get_section(run, "effective")) for run in firsts]
    names = list(dict.fromkeys(name for column in columns for name in column))
    reported = [name for name in names if any(_is_reported(column.get(name)) for column in columns)]
    if not reported:
        return None
    differing = [name for name in reported if _is_differing([column.get(name) for column in columns])]
    head: list[Html | str] = ["setting", *(series.label for series in report.series)]
    return render_section(
        "settings",
        "Effective settings",
        h("p", "The effective value; a different requested value follows, struck through."),
        _render_table(head, differing, columns, "Settings that differ from the request or between engines")
        if differing
        else h("p", "All engines ran with the same settings, as requested."),
        _render_folded("the same for all engines", head, [name for name in reported if name not in differing], columns),
        _render_folded(
            "requested, but not reported by the engine", head, [name for name in names if name not in reported], columns
        ),
    )


def _make_column(requested: Mapping[str, object], effective: Mapping[str, object]) -> Column:
    return {row.name: row for row in diff_settings(requested, effective)}


def _is_reported(row: SettingRow | None) -> bool:
    return row is not None and row.state != "not_reported"


def _is_differing(rows: Sequence[SettingRow | None]) -> bool:
    effective = {repr(row.effective) if row is not None and _is_reported(row) else "" for row in rows}
    return len(effective) > 1 or any(row is not None and row.state == "changed" for row in rows)


def _render_folded(title: str, head: list[Html | str], names: list[str], columns: Sequence[Column]) -> Html | None:
    if not names:
        return None
    summary = f"{len(names)} {title}"
    return render_details(summary, _render_table(head, names, columns, summary))


def _render_table(head: list[Html | str], names: list[str], columns: Sequence[Column], caption: str) -> Html:
    rows: list[list[Html | str | None]] = [
        [h("code", name), *(_render_cell(column.get(name)) for column in columns)] for name in names
    ]
    return render_table(head, rows, caption, class_="pinned")


def _render_cell(row: SettingRow | None) -> Html | str | None:
    if row is None:
        return None
    if row.state == "not_reported":
        return h("span", f"{format_setting(row.asked)} requested", class_="quiet")
    if row.state != "changed":
        return format_setting(row.effective)
    return join_html(
        h("strong", format_setting(row.effective)), " ", h("s", format_setting(row.asked), title="requested")
    )
