"""`bay report`: runs as one HTML page that opens anywhere, offline."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from enginebay.cli.lab.lab_dependencies import require_lab
from enginebay.cli.lab.results import note_corrupt
from enginebay.cli.output.console import note

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command()
def report(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Ids or their beginnings, study ids, or `latest` for the last study"),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write")] = Path("report.html"),
    title: Annotated[str, typer.Option("--title", help="The page's title; default: models and engines")] = "",
    runs: Annotated[Path | None, typer.Option("--runs", metavar="DIR", help="Where the runs are")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is no report")] = False,
) -> None:
    """Write runs as one self-contained HTML page: verdicts, figures, plots, and how to repeat them."""
    require_lab()
    from enginebay.errors import UsageError
    from enginebay.lab.report.report_page import is_report, write_report
    from enginebay.lab.store.run_folders import runs_dir
    from enginebay.lab.store.run_selection import select_runs

    if runs is not None and not runs.is_dir():
        raise UsageError(f"there is no folder {runs}", "give the folder of runs with --runs")
    if output.is_dir():
        raise UsageError(f"{output} is a folder", "give a file: -o report.html")
    if output.exists() and not force and not is_report(output):
        raise UsageError(
            f"{output} is there already, and is no report", "take another name, or write over it with --force"
        )
    found, problems = select_runs(runs or runs_dir(), names)
    note_corrupt(problems)
    write_report(found, output, title)
    counts = Counter(run.status for run in found)
    verdicts = ", ".join(f"{counts[one]} {one}" for one in ("valid", "informative", "invalid") if counts[one])
    print(output)
    note(
        f"{len(found)} run{'' if len(found) == 1 else 's'}: {verdicts}; {output.stat().st_size / 1e6:.1f} MB, opens offline"
    )
