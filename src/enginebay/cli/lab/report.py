"""`bay report`: write runs as one self-contained HTML page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from enginebay.cli.lab.lab_dependencies import require_lab
from enginebay.cli.lab.results import note_corrupt
from enginebay.cli.options.command_app import create_app
from enginebay.cli.output.console import note
from enginebay.util.number_format import format_bytes
from enginebay.util.text_format import pluralize

app = create_app(no_args_is_help=True)


@app.command()
def report(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run ids or prefixes, study ids, or `latest` for the last study"),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Output file")] = Path("report.html"),
    title: Annotated[str, typer.Option("--title", help="Page title (default: models and engines)")] = "",
    runs: Annotated[Path | None, typer.Option("--runs", metavar="DIR", help="Directory with the runs")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is not a report")] = False,
) -> None:
    """Write runs as one self-contained HTML page: verdicts, figures, plots, and how to reproduce them."""
    require_lab()
    from enginebay.errors import UsageError
    from enginebay.lab.report.report_page import is_report, write_report
    from enginebay.lab.store.run_folders import runs_dir
    from enginebay.lab.store.run_selection import select_runs

    if runs is not None and not runs.is_dir():
        raise UsageError(f"no such directory: {runs}", "pass the directory with the runs as --runs")
    if output.is_dir():
        raise UsageError(f"{output} is a directory", "pass a file: -o report.html")
    if output.exists() and not force and not is_report(output):
        raise UsageError(f"{output} exists and is not a report", "choose another name, or overwrite it with --force")
    selected, problems = select_runs(runs or runs_dir(), names)
    note_corrupt(problems)
    write_report(selected, output, title)
    counts = Counter(run.status for run in selected)
    verdicts = ", ".join(
        f"{counts[status]} {status}" for status in ("valid", "informative", "invalid") if counts[status]
    )
    print(output)
    note(f"{pluralize(len(selected), 'run')}: {verdicts}; {format_bytes(output.stat().st_size)}, opens offline")
