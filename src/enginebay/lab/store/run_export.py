"""Export runs as CSV, JSON or Markdown. Each marks the figures of invalid runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from enginebay.lab.measures.flat_figures import flatten_figures
from enginebay.lab.measures.headlines import select_headlines
from enginebay.lab.store.run_reader import Run
from enginebay.util.number_format import format_digits

EXPORT_FORMATS = ("csv", "json", "markdown")


def export_runs(runs: Sequence[Run], format: str) -> str:
    return {"csv": _to_csv, "json": _to_json, "markdown": _to_markdown}[format](runs)


def list_reason_codes(run: Run) -> list[str]:
    return [str(reason.get("code", "")) for reason in run.reasons]


def describe_run(run: Run) -> dict[str, Any]:
    """Return the columns before the figures; the verdict follows the id."""
    manifest = run.manifest
    return {
        "id": run.id,
        "verdict": run.status,
        "reasons": " ".join(list_reason_codes(run)),
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


def _to_csv(runs: Sequence[Run]) -> str:
    """Write one row per run, one column per figure that any of them has."""
    figures = {run.id: flatten_figures(run.measures) for run in runs}
    names = list(dict.fromkeys(name for row in figures.values() for name in row))
    out = io.StringIO()
    rows = csv.DictWriter(out, [*describe_run(runs[0]), *names], lineterminator="\n")
    rows.writeheader()
    rows.writerows({**describe_run(run), **figures[run.id]} for run in runs)
    return out.getvalue()


def _to_json(runs: Sequence[Run]) -> str:
    return json.dumps([run.manifest for run in runs], indent=2, ensure_ascii=False) + "\n"


def _to_markdown(runs: Sequence[Run]) -> str:
    """Write the headline figures, one row per run, and below them why verdicts are not `valid`."""
    figures = {run.id: flatten_figures(run.measures) for run in runs}
    names = select_headlines(name for row in figures.values() for name in row)
    lines = [_format_row(["run", "verdict", "engine", "model", "label", *names])]
    lines.append("|" + "---|" * 5 + "---:|" * len(names))
    for run in runs:
        mark = " (invalid)" if run.status == "invalid" else ""
        cells = [f"{format_digits(figures[run.id][name])}{mark}" if name in figures[run.id] else "" for name in names]
        lines.append(_format_row([run.id, run.status, run.engine, run.model, run.label, *cells]))
    reasons = [_explain_reason(run, reason) for run in runs for reason in run.reasons]
    return "\n".join([*lines, *(["", *reasons] if reasons else [])]) + "\n"


def _explain_reason(run: Run, reason: dict[str, Any]) -> str:
    """Explain one reason; its severity may be below that of the run's verdict."""
    is_caveat = run.status == "invalid" and reason.get("severity") == "informative"
    verdict = "would be informative for this reason alone" if is_caveat else f"is {run.status}"
    return f"- `{run.id}` {verdict}: {_escape_cell(reason.get('code', ''))}: {_escape_cell(reason.get('message', ''))}"


def _format_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escape_cell, cells)) + " |"


def _escape_cell(text: object) -> str:
    return " ".join(str(text).replace("\\", "\\\\").replace("|", "\\|").split())
