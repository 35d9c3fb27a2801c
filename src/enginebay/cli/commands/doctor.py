"""`bay doctor`: check this host and say how to fix what is missing or broken."""

from __future__ import annotations

from typing import Annotated

import typer

from enginebay.cli.options.command_app import create_app
from enginebay.cli.output.console import emit_json

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
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            print(f"{_MARKS[finding.state]:<7} {finding.what:<{width}}  {finding.found}")
            if finding.cure:
                print(f"{'':7} {'':{width}}  -> {finding.cure}")
    if is_broken:
        raise typer.Exit(1)
