"""Machine and method, missing measures, and how to reproduce the runs."""

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
        render_table(["item", "value"], rows, "Environment of the runs"),
        _render_windows(report),
    )


def _section_rows(runs: tuple[Run, ...], name: str) -> list[list[Html | str | None]]:
    """Return one row per key of a manifest section; differing values of runs side by side."""
    columns = [flatten_settings(get_section(run, name)) for run in runs]
    keys = [key for key in dict.fromkeys(key for column in columns for key in column) if key]
    return [[f"{name} · {key}", _format_values(columns, key)] for key in keys]


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
    known = [
        float(window_s) for run in report.runs if isinstance(window_s := run.manifest.get("window_s"), int | float)
    ]
    if not known:
        return h("p", "The length of the measured windows is unknown.")
    span = (
        format_figure(min(known), "s")
        if min(known) == max(known)
        else f"{format_figure(min(known), 's')} to {format_figure(max(known), 's')}"
    )
    return h(
        "p",
        f"Measured windows: {span}. Latency is reported from the actual and from the intended send time; "
        "token counts are the server's usage, not stream chunks.",
    )


def render_absent(report: ReportContent) -> Html | None:
    """Render what could not be read and why; it is never estimated."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for run in report.runs:
        for measure, why in {**get_section(run, "absent"), **get_section(run, "measures", "absent")}.items():
            reasons.setdefault((str(measure), str(why)), []).append(run.id)
    if not reasons:
        return None
    rows: list[list[Html | str | None]] = [
        [h("code", measure), "all" if len(ids) == len(report.runs) else f"{len(ids)} of {len(report.runs)}", why]
        for (measure, why), ids in sorted(reasons.items())
    ]
    return render_section(
        "absent", "Missing measures", render_table(["measure", "runs", "reason"], rows, "Missing measures and why")
    )


def render_reproduce(report: ReportContent) -> Html:
    ids = list(dict.fromkeys(str(get_section(run, "study").get("id") or run.id) for run in report.runs))
    return render_section(
        "reproduce",
        "Reproduce",
        h("h3", "One engine at one load"),
        *(_render_commands(report)),
        *(_render_config(number, point) for number, point in enumerate(report.points)),
        h("h3", "This page"),
        _render_code("page-command", f"bay report {' '.join(ids)} -o report.html"),
        render_details("Runs and file hashes", _render_files(report)),
    )


def _render_commands(report: ReportContent) -> list[Html]:
    """Render one command per external server, or one that starts its own."""
    servers = dict.fromkeys(get_external_url(point.group.runs[0]) for point in report.points)
    return [
        _render_code(f"command-{number}", f"bay experiment experiment.yaml{url and f' --url {url}'}")
        for number, url in enumerate(servers)
    ]


def _render_config(number: int, point: ReportPoint) -> Html:
    text = json.dumps(get_section(point.group.runs[0], "config"), indent=2, ensure_ascii=False, default=str)
    return render_details(
        join_html(h("code", "experiment.yaml"), f" of {point.name}"), _render_code(f"config-{number}", text)
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
    return render_table(["run", "file", "SHA-256"], rows, "File hashes of each run")
