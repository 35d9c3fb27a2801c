"""Render the report and write it as one file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from string import Template

from enginebay.errors import UsageError
from enginebay.lab.report.engine_pairs import compare_engine_pairs
from enginebay.lab.report.manifest_access import get_section
from enginebay.lab.report.markup import Html, h, join_html
from enginebay.lab.report.page_data import build_page_data, embed_json
from enginebay.lab.report.report_points import ReportContent, arrange_runs
from enginebay.lab.report.sections.comparison_section import render_comparison, render_parity
from enginebay.lab.report.sections.glance_section import render_glance
from enginebay.lab.report.sections.method_section import render_absent, render_method, render_reproduce
from enginebay.lab.report.sections.plots_section import render_plots
from enginebay.lab.report.sections.results_section import render_results
from enginebay.lab.report.sections.settings_section import render_settings
from enginebay.lab.report.sections.verdicts_section import render_reasons, render_verdicts
from enginebay.lab.report.setting_values import format_setting
from enginebay.lab.store.run_reader import Run
from enginebay.util.atomic_file import write_atomically
from enginebay.util.text_format import pluralize

SCRIPTS = ("dom.js", "scale.js", "chart.js", "distribution.js", "tradeoff.js", "timeline.js", "report.js")
NAVIGATION = (
    ("verdicts", "Verdict"),
    ("results", "Results"),
    ("reasons", "Reasons"),
    ("comparison", "Comparison"),
    ("distributions", "Latency"),
    ("tradeoff", "Throughput"),
    ("energy", "Energy"),
    ("timeline", "Timeline"),
    ("parity", "Parity"),
    ("settings", "Settings"),
    ("method", "Method"),
    ("absent", "Missing"),
    ("reproduce", "Reproduce"),
)
_GENERATOR_TAG = b'<meta name="generator" content="Enginebay">'  # as report.html has it
_HEAD_BYTES = 2048  # the tag precedes everything of variable length


def is_report(path: Path) -> bool:
    """Return whether the file is an Enginebay report, judging by its head."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _GENERATOR_TAG in file.read(_HEAD_BYTES)


def write_report(runs: Sequence[Run], path: Path, title: str = "") -> Path:
    """Write one HTML file that works offline. The file is replaced atomically."""
    write_atomically(path, render_report(runs, title))
    return path


def render_report(runs: Sequence[Run], title: str = "") -> str:
    """Render the page as text."""
    if not runs:
        raise UsageError("a report needs at least one run", "`bay results list` shows all runs")
    report = arrange_runs(runs, title)
    style, script = _read_asset("report.css"), "\n".join(_read_asset(name) for name in SCRIPTS)
    body = _render_body(report)
    return Template(_read_asset("report.html")).substitute(
        policy=_make_csp(style, script),
        title=join_html(report.title),
        meta=_render_meta(report),
        navigation=_render_navigation(body),
        style=style,
        body=body,
        data=embed_json(build_page_data(report)),
        script=script,
    )


def _render_body(report: ReportContent) -> Html:
    compared = compare_engine_pairs(report)
    return join_html(
        render_verdicts(report, render_glance(report, compared)),
        render_results(report),
        render_reasons(report),
        render_comparison(compared),
        render_plots(),
        render_parity(compared),
        render_settings(report),
        render_method(report),
        render_absent(report),
        render_reproduce(report),
    )


def _read_asset(name: str) -> str:
    return (files("enginebay.lab.report") / "assets" / name).read_text(encoding="utf-8")


def _make_csp(style: str, script: str) -> str:
    """Return a policy by which the browser refuses all network access and any foreign script or style."""
    return f"default-src 'none'; style-src '{_hash_source(style)}'; script-src '{_hash_source(script)}'; base-uri 'none'; form-action 'none'"


def _hash_source(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _render_navigation(body: str) -> Html:
    present = [(anchor, name) for anchor, name in NAVIGATION if f'<section id="{anchor}"' in body]
    return h("ul", *(h("li", h("a", name, href=f"#{anchor}")) for anchor, name in present))


def _render_meta(report: ReportContent) -> Html:
    environment = get_section(report.runs[0], "environment")
    days = sorted(str(run.manifest.get("created", ""))[:10] for run in report.runs)
    shown = [
        f"{pluralize(len(report.runs), 'run')} of {pluralize(len(report.points), 'point')}",
        days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}",
        *(format_setting(environment[name]) for name in ("host", "cpu", "gpu") if environment.get(name)),
        f"written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    ]
    return join_html(*(h("li", item) for item in shown if item))
