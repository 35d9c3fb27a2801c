"""Where and how it was measured, what could not be read, and how to do it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from enginebay.lab.measures.parity import flatten_settings
from enginebay.lab.report.figure_format import format_figure
from enginebay.lab.report.manifest_access import get_external_url, get_section
from enginebay.lab.report.markup import Html, h, join_html, render_details, render_section, render_table
from enginebay.lab.report.report_points import ReportContent, ReportPoint
from enginebay.lab.report.setting_values import format_setting
from enginebay.lab.store.run_reader import Run

MANIFEST_SECTIONS = ("environment", "engine", "model", "workload", "seeds")


def render_method(report: ReportContent) -> Html:
    rows = [row for name in MANIFEST_SECTIONS for row in _section_rows(report.runs, name)]
    return render_section(
        "method",
        "Method and machine",
        render_table(["what", "value"], rows, "Where and with what the runs were measured"),
        _render_windows(report),
    )


def _section_rows(runs: tuple[Run, ...], name: str) -> list[list[Html | str | None]]:
    """A part of the manifests, one row for each name; different values of different runs side by side."""
    columns = [flatten_settings(get_section(run, name)) for run in runs]
    names = [one for one in dict.fromkeys(key for column in columns for key in column) if one]
    return [[f"{name} · {one}", _format_values(columns, one)] for one in names]


def _format_values(columns: list[dict[str, Any]], name: str) -> Html | str:
    values = list(
        dict.fromkeys(_format_value(name, column[name]) for column in columns if column.get(name) is not None)
    )
    tail = f" / … {len(values) - 8} more" if len(values) > 8 else ""
    text = " / ".join(values[:8]) + tail
    return h("code", text) if name.endswith("sha256") else text


def _format_value(name: str, value: Any) -> str:
    if name.endswith("bytes") and isinstance(value, int | float) and not isinstance(value, bool):
        return format_figure(float(value), "bytes")
    return format_setting(value)


def _render_windows(report: ReportContent) -> Html:
    known = [float(one) for run in report.runs if isinstance(one := run.manifest.get("window_s"), int | float)]
    if not known:
        return h("p", "The length of the measured windows is not known.")
    span = (
        format_figure(min(known), "s")
        if min(known) == max(known)
        else f"{format_figure(min(known), 's')} to {format_figure(max(known), 's')}"
    )
    return h(
        "p",
        f"Measured windows: {span}. Latency is given from the actual and from the intended send time; "
        "tokens are counted by the server's usage, never by chunks of the stream.",
    )


def render_absent(report: ReportContent) -> Html | None:
    """What could not be read here, and why: never replaced by an estimate."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in report.runs:
        for what, why in {**get_section(run, "absent"), **get_section(run, "measures", "absent")}.items():
            found.setdefault((str(what), str(why)), []).append(run.id)
    if not found:
        return None
    rows: list[list[Html | str | None]] = [
        [h("code", what), "all" if len(ids) == len(report.runs) else f"{len(ids)} of {len(report.runs)}", why]
        for (what, why), ids in sorted(found.items())
    ]
    return render_section(
        "absent", "What is not here", render_table(["measure", "runs", "reason"], rows, "Absent measures and why")
    )


def render_reproduce(report: ReportContent) -> Html:
    ids = list(dict.fromkeys(str(get_section(run, "study").get("id") or run.id) for run in report.runs))
    return render_section(
        "reproduce",
        "Reproduce",
        h("h3", "An engine at a load"),
        *(_render_commands(report)),
        *(_render_config(number, one) for number, one in enumerate(report.points)),
        h("h3", "This page"),
        _render_code("page-command", f"bay report {' '.join(ids)} -o report.html"),
        render_details("Runs and the hashes of their files", _render_files(report)),
    )


def _render_commands(report: ReportContent) -> list[Html]:
    """One for each server that was measured, unless the experiment itself starts it."""
    servers = dict.fromkeys(get_external_url(point.group.runs[0]) for point in report.points)
    return [
        _render_code(f"command-{number}", f"bay experiment experiment.yaml{url and f' --url {url}'}")
        for number, url in enumerate(servers)
    ]


def _render_config(number: int, point: ReportPoint) -> Html:
    text = json.dumps(get_section(point.group.runs[0], "config"), indent=2, ensure_ascii=False, default=str)
    return render_details(
        join_html(h("code", "experiment.yaml"), f" of {point.name}"),
        _render_code(f"config-{number}", text),
    )


def _render_code(name: str, text: str) -> Html:
    button = h("button", "Copy", type="button", class_="copy", data_copy=name)
    return h("div", h("pre", h("code", text, id=name), tabindex=0), button, class_="code")


def _render_files(report: ReportContent) -> Html:
    rows: list[list[Html | str | None]] = [
        [h("code", run.id), h("code", str(name)), h("code", str(facts.get("sha256", "")))]
        for run in report.runs
        for name, facts in get_section(run, "files").items()
        if isinstance(facts, Mapping)
    ]
    return render_table(["run", "file", "SHA-256"], rows, "Hashes of the files of each run")
