"""What each engine really ran, against what was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from enginebay.lab.measures.parity import SettingRow, diff_settings
from enginebay.lab.report.manifest_access import get_section
from enginebay.lab.report.markup import Html, h, join_html, render_details, render_section, render_table
from enginebay.lab.report.report_points import ReportContent
from enginebay.lab.report.setting_values import format_setting

Column = Mapping[str, SettingRow]


def render_settings(report: ReportContent) -> Html | None:
    columns = [_make_column(one.first.requested_settings, get_section(one.first, "effective")) for one in report.series]
    names = list(dict.fromkeys(name for column in columns for name in column))
    told = [name for name in names if any(_is_reported(column.get(name)) for column in columns)]
    if not told:
        return None
    unlike = [name for name in told if _is_unlike([column.get(name) for column in columns])]
    head: list[Html | str] = ["setting", *(one.label for one in report.series)]
    return render_section(
        "settings",
        "Settings in effect",
        h("p", "The value in effect; where another one was asked for, that one follows, struck through."),
        _render_table(head, unlike, columns, "Settings that differ from what was asked, or between engines")
        if unlike
        else h("p", "Every engine ran with the same settings, and with those that were asked for."),
        _render_folded("the same everywhere", head, [name for name in told if name not in unlike], columns),
        _render_folded(
            "asked for, and not reported by the engine", head, [name for name in names if name not in told], columns
        ),
    )


def _make_column(asked: Mapping[str, object], effective: Mapping[str, object]) -> Column:
    return {row.name: row for row in diff_settings(asked, effective)}


def _is_reported(row: SettingRow | None) -> bool:
    return row is not None and row.state != "not_reported"


def _is_unlike(rows: Sequence[SettingRow | None]) -> bool:
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
        return h("span", f"{format_setting(row.asked)} asked", class_="quiet")
    if row.state != "changed":
        return format_setting(row.effective)
    return join_html(
        h("strong", format_setting(row.effective)), " ", h("s", format_setting(row.asked), title="asked for")
    )
