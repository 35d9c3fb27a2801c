"""`bay doctor`: what this host has, what is missing, and what to do about it."""

from __future__ import annotations

from typing import Annotated

import typer

from enginebay.cli.output.console import emit_json

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Show what this host has and what is missing.",
)
_MARKS = {"ok": "ok", "absent": "-", "broken": "BROKEN"}


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="Machine-readable output")] = False) -> None:
    """Show what this host has and what is missing. Exit code 1 when something is broken, not merely absent."""
    from enginebay.fleet.diagnostics import FindingState, run_diagnostics

    findings = run_diagnostics()
    is_broken = any(one.state is FindingState.BROKEN for one in findings)
    if json:
        emit_json({"ok": not is_broken, "findings": [one.to_json() for one in findings]})
    else:
        width = max(len(one.what) for one in findings)
        for one in findings:
            print(f"{_MARKS[one.state]:<7} {one.what:<{width}}  {one.found}")
            if one.cure:
                print(f"{'':7} {'':{width}}  -> {one.cure}")
    if is_broken:
        raise typer.Exit(1)
