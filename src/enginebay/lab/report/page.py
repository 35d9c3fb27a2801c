"""The page put together, and written as one file."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from string import Template

from enginebay.errors import UsageError
from enginebay.lab.report.comparing import pairs
from enginebay.lab.report.data import embed, page_data
from enginebay.lab.report.markup import Html, h, join
from enginebay.lab.report.points import Report, arrange
from enginebay.lab.report.sections.comparison import comparison, parity
from enginebay.lab.report.sections.glance import glance
from enginebay.lab.report.sections.method import absent, method, reproduce
from enginebay.lab.report.sections.plots import plots
from enginebay.lab.report.sections.results import results
from enginebay.lab.report.sections.settings import settings
from enginebay.lab.report.sections.verdicts import reasons, verdicts
from enginebay.lab.report.settings import shown as as_text
from enginebay.lab.report.source import part
from enginebay.lab.runs.reader import Run
from enginebay.wording import counted

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
    ("absent", "Absent"),
    ("reproduce", "Reproduce"),
)
_GENERATOR = b'<meta name="generator" content="Enginebay">'  # as report.html has it
_HEAD_BYTES = 2048  # it stands before what can be long


def is_report(path: Path) -> bool:
    """Whether the file is a page of ours, by what its head says."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _GENERATOR in file.read(_HEAD_BYTES)


def write_report(runs: Sequence[Run], path: Path, title: str = "") -> Path:
    """Write one HTML file that opens offline; an older one at the path is replaced only when the new one is whole."""
    text = render(runs, title)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def render(runs: Sequence[Run], title: str = "") -> str:
    """The page as text."""
    if not runs:
        raise UsageError("a report needs at least one run", "`bay results list` shows the runs there are")
    report = arrange(runs, title)
    style, script = _asset("report.css"), "\n".join(_asset(name) for name in SCRIPTS)
    body = _body(report)
    return Template(_asset("report.html")).substitute(
        policy=_policy(style, script),
        title=join(report.title),
        meta=_meta(report),
        navigation=_navigation(body),
        style=style,
        body=body,
        data=embed(page_data(report)),
        script=script,
    )


def _body(report: Report) -> Html:
    compared = pairs(report)
    return join(
        verdicts(report, glance(report, compared)),
        results(report),
        reasons(report),
        comparison(compared),
        plots(),
        parity(compared),
        settings(report),
        method(report),
        absent(report),
        reproduce(report),
    )


def _asset(name: str) -> str:
    return (files("enginebay.lab.report") / "assets" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """The browser itself refuses any network and any script or style that is not ours."""
    return f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _navigation(body: str) -> Html:
    there = [(anchor, name) for anchor, name in NAVIGATION if f'<section id="{anchor}"' in body]
    return h("ul", *(h("li", h("a", name, href=f"#{anchor}")) for anchor, name in there))


def _meta(report: Report) -> Html:
    environment = part(report.runs[0], "environment")
    days = sorted(str(run.manifest.get("created", ""))[:10] for run in report.runs)
    shown = [
        f"{counted(len(report.runs), 'run')} of {counted(len(report.points), 'point')}",
        days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}",
        *(as_text(environment[name]) for name in ("host", "cpu", "gpu") if environment.get(name)),
        f"written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    ]
    return join(*(h("li", one) for one in shown if one))
