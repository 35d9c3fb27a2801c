"""What each engine really ran, against what was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from enginebay.lab.parity import SettingRow, settings_diff
from enginebay.lab.report.markup import Html, details, h, join, section, table
from enginebay.lab.report.points import Report
from enginebay.lab.report.settings import shown
from enginebay.lab.report.source import part

Column = Mapping[str, SettingRow]


def settings(report: Report) -> Html | None:
    columns = [_column(one.first.asked, part(one.first, "effective")) for one in report.series]
    names = list(dict.fromkeys(name for column in columns for name in column))
    told = [name for name in names if any(_ran(column.get(name)) for column in columns)]
    if not told:
        return None
    unlike = [name for name in told if _unlike([column.get(name) for column in columns])]
    head: list[Html | str] = ["setting", *(one.label for one in report.series)]
    return section(
        "settings",
        "Settings in effect",
        h("p", "The value in effect; where another one was asked for, that one follows, struck through."),
        _table(head, unlike, columns, "Settings that differ from what was asked, or between engines")
        if unlike
        else h("p", "Every engine ran with the same settings, and with those that were asked for."),
        _folded("the same everywhere", head, [name for name in told if name not in unlike], columns),
        _folded(
            "asked for, and not reported by the engine", head, [name for name in names if name not in told], columns
        ),
    )


def _column(asked: Mapping[str, object], effective: Mapping[str, object]) -> Column:
    return {row.name: row for row in settings_diff(asked, effective)}


def _ran(row: SettingRow | None) -> bool:
    return row is not None and row.state != "not_reported"


def _unlike(rows: Sequence[SettingRow | None]) -> bool:
    effective = {repr(row.effective) if row is not None and _ran(row) else "" for row in rows}
    return len(effective) > 1 or any(row is not None and row.state == "changed" for row in rows)


def _folded(title: str, head: list[Html | str], names: list[str], columns: Sequence[Column]) -> Html | None:
    if not names:
        return None
    summary = f"{len(names)} {title}"
    return details(summary, _table(head, names, columns, summary))


def _table(head: list[Html | str], names: list[str], columns: Sequence[Column], caption: str) -> Html:
    rows: list[list[Html | str | None]] = [
        [h("code", name), *(_cell(column.get(name)) for column in columns)] for name in names
    ]
    return table(head, rows, caption, class_="pinned")


def _cell(row: SettingRow | None) -> Html | str | None:
    if row is None:
        return None
    if row.state == "not_reported":
        return h("span", f"{shown(row.asked)} asked", class_="quiet")
    if row.state != "changed":
        return shown(row.effective)
    return join(h("strong", shown(row.effective)), " ", h("s", shown(row.asked), title="asked for"))
