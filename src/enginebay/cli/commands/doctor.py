"""`bay doctor`: check this host and say how to fix what is missing or broken."""

from __future__ import annotations

from typing import Annotated

import typer

from enginebay.cli.options.command_app import create_app
from enginebay.cli.output.console import emit_json, print_table
from enginebay.cli.output.table_layout import Column

app = create_app(help="Check this host: what is installed, missing or broken.")
_MARKS = {"ok": "ok", "absent": "-", "broken": "BROKEN"}


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="Machine-readable output")] = False) -> None:
    """Check this host: what is installed, missing or broken. Exits with 1 if something is broken, not just missing."""
    from enginebay.fleet.diagnostics import FindingState, run_diagnostics

    findings = run_diagnostics()
    is_broken = any(finding.state is FindingState.BROKEN for finding in findings)
    if json:
        emit_json({"ok": not is_broken, "findings": [finding.to_json() for finding in findings]})
    else:
        print_table(
            ("state", "check", "found", Column("fix", detail=True)),
            [(_MARKS[finding.state], finding.what, finding.found, finding.cure) for finding in findings],
        )
    if is_broken:
        raise typer.Exit(1)
