"""`bay ps`: every model of a running server, where it is and what it takes."""

from __future__ import annotations

import typer

from enginebay.cli.admin.admin_client import JsonOption, KeyOption, UrlOption, get_admin
from enginebay.cli.output.console import emit_json, print_table

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help="Show a server's models."
)


@app.command()
def ps(url: UrlOption = None, key: KeyOption = None, json: JsonOption = False) -> None:
    """Every model of a running server: its engine and state, requests, memory, and how it was last made ready."""
    from enginebay.cli.output.fleet_tables import PS_COLUMNS, build_ps_notes, build_ps_rows

    found = get_admin(url, key, "ps")
    if json:
        emit_json(found)
        return
    print_table(PS_COLUMNS, build_ps_rows(found))
    for line in build_ps_notes(found):
        print(line)
