"""Where and how it was measured, what could not be read, and how to do it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from enginebay.lab.parity import flat_settings
from enginebay.lab.report.figures import figure
from enginebay.lab.report.markup import Html, details, h, join, section, table
from enginebay.lab.report.points import Point, Report
from enginebay.lab.report.settings import shown
from enginebay.lab.report.source import part, running_at
from enginebay.lab.runs.reader import Run

PARTS = ("environment", "engine", "model", "workload", "seeds")


def method(report: Report) -> Html:
    rows = [row for name in PARTS for row in _rows(report.runs, name)]
    return section(
        "method",
        "Method and machine",
        table(["what", "value"], rows, "Where and with what the runs were measured"),
        _windows(report),
    )


def _rows(runs: tuple[Run, ...], name: str) -> list[list[Html | str | None]]:
    """A part of the manifests, one row for each name; different values of different runs side by side."""
    columns = [flat_settings(part(run, name)) for run in runs]
    names = [one for one in dict.fromkeys(key for column in columns for key in column) if one]
    return [[f"{name} · {one}", _values(columns, one)] for one in names]


def _values(columns: list[dict[str, Any]], name: str) -> Html | str:
    values = list(dict.fromkeys(_text(name, column[name]) for column in columns if column.get(name) is not None))
    tail = f" / … {len(values) - 8} more" if len(values) > 8 else ""
    text = " / ".join(values[:8]) + tail
    return h("code", text) if name.endswith("sha256") else text


def _text(name: str, value: Any) -> str:
    if name.endswith("bytes") and isinstance(value, int | float) and not isinstance(value, bool):
        return figure(float(value), "bytes")
    return shown(value)


def _windows(report: Report) -> Html:
    known = [float(one) for run in report.runs if isinstance(one := run.manifest.get("window_s"), int | float)]
    if not known:
        return h("p", "The length of the measured windows is not known.")
    span = (
        figure(min(known), "s")
        if min(known) == max(known)
        else f"{figure(min(known), 's')} to {figure(max(known), 's')}"
    )
    return h(
        "p",
        f"Measured windows: {span}. Latency is given from the actual and from the intended send time; "
        "tokens are counted by the server's usage, never by chunks of the stream.",
    )


def absent(report: Report) -> Html | None:
    """What could not be read here, and why: never replaced by an estimate."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in report.runs:
        for what, why in {**part(run, "absent"), **part(run, "measures", "absent")}.items():
            found.setdefault((str(what), str(why)), []).append(run.id)
    if not found:
        return None
    rows: list[list[Html | str | None]] = [
        [h("code", what), "all" if len(ids) == len(report.runs) else f"{len(ids)} of {len(report.runs)}", why]
        for (what, why), ids in sorted(found.items())
    ]
    return section("absent", "What is not here", table(["measure", "runs", "reason"], rows, "Absent measures and why"))


def reproduce(report: Report) -> Html:
    ids = list(dict.fromkeys(str(part(run, "study").get("id") or run.id) for run in report.runs))
    return section(
        "reproduce",
        "Reproduce",
        h("h3", "An engine at a load"),
        *(_commands(report)),
        *(_config(number, one) for number, one in enumerate(report.points)),
        h("h3", "This page"),
        _code("page-command", f"bay report {' '.join(ids)} -o report.html"),
        details("Runs and the hashes of their files", _files(report)),
    )


def _commands(report: Report) -> list[Html]:
    """One for each server that was measured, unless the experiment itself starts it."""
    servers = dict.fromkeys(running_at(point.group.runs[0]) for point in report.points)
    return [
        _code(f"command-{number}", f"bay experiment experiment.yaml{url and f' --url {url}'}")
        for number, url in enumerate(servers)
    ]


def _config(number: int, point: Point) -> Html:
    text = json.dumps(part(point.group.runs[0], "config"), indent=2, ensure_ascii=False, default=str)
    return details(
        join(h("code", "experiment.yaml"), f" of {point.name}"),
        _code(f"config-{number}", text),
    )


def _code(name: str, text: str) -> Html:
    button = h("button", "Copy", type="button", class_="copy", data_copy=name)
    return h("div", h("pre", h("code", text, id=name), tabindex=0), button, class_="code")


def _files(report: Report) -> Html:
    rows: list[list[Html | str | None]] = [
        [h("code", run.id), h("code", str(name)), h("code", str(facts.get("sha256", "")))]
        for run in report.runs
        for name, facts in part(run, "files").items()
        if isinstance(facts, Mapping)
    ]
    return table(["run", "file", "SHA-256"], rows, "Hashes of the files of each run")
