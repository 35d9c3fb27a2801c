"""Runs as CSV, JSON and Markdown. An invalid run's numbers are marked in each."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from enginebay.lab.measures.figures import flat_figures
from enginebay.lab.runs.figures import digits, headlines
from enginebay.lab.runs.reader import Run

FORMATS = ("csv", "json", "markdown")


def export(runs: Sequence[Run], format: str) -> str:
    return {"csv": _csv, "json": _json, "markdown": _markdown}[format](runs)


def reason_codes(run: Run) -> list[str]:
    return [str(reason.get("code", "")) for reason in run.reasons]


def about(run: Run) -> dict[str, Any]:
    """What a row says of a run before its numbers; the verdict comes right after the name."""
    manifest = run.manifest
    return {
        "id": run.id,
        "verdict": run.status,
        "reasons": " ".join(reason_codes(run)),
        "study": run.study_id or "",
        "cycle": run.cycle,
        "label": run.label,
        "engine": run.engine,
        "engine_version": manifest["engine"].get("version") or "",
        "model": run.model,
        "profile": manifest["profile"].get("kind") or "",
        "host": manifest["environment"].get("host") or "",
        "created": manifest["created"],
    }


def _csv(runs: Sequence[Run]) -> str:
    """One row for each run, one column for each figure that any of them has."""
    figures = {run.id: flat_figures(run.measures) for run in runs}
    names = list(dict.fromkeys(name for found in figures.values() for name in found))
    out = io.StringIO()
    rows = csv.DictWriter(out, [*about(runs[0]), *names], lineterminator="\n")
    rows.writeheader()
    rows.writerows({**about(run), **figures[run.id]} for run in runs)
    return out.getvalue()


def _json(runs: Sequence[Run]) -> str:
    return json.dumps([run.manifest for run in runs], indent=2, ensure_ascii=False) + "\n"


def _markdown(runs: Sequence[Run]) -> str:
    """The headline figures, one row for each run, and below it why each verdict is not `valid`."""
    figures = {run.id: flat_figures(run.measures) for run in runs}
    names = headlines(name for found in figures.values() for name in found)
    lines = [_line(["run", "verdict", "engine", "model", "label", *names])]
    lines.append("|" + "---|" * 5 + "---:|" * len(names))
    for run in runs:
        mark = " (invalid)" if run.status == "invalid" else ""
        cells = [f"{digits(figures[run.id][name])}{mark}" if name in figures[run.id] else "" for name in names]
        lines.append(_line([run.id, run.status, run.engine, run.model, run.label, *cells]))
    reasons = [_why(run, reason) for run in runs for reason in run.reasons]
    return "\n".join([*lines, *(["", *reasons] if reasons else [])]) + "\n"


def _why(run: Run, reason: dict[str, Any]) -> str:
    """What a reason makes of its run, which may be less than what the worst one makes of it."""
    is_caveat = run.status == "invalid" and reason.get("severity") == "informative"
    verdict = "would be informative for this alone" if is_caveat else f"is {run.status}"
    return f"- `{run.id}` {verdict}: {_cell(reason.get('code', ''))}: {_cell(reason.get('message', ''))}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: object) -> str:
    return " ".join(str(text).replace("\\", "\\\\").replace("|", "\\|").split())
