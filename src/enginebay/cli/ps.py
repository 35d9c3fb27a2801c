"""`bay ps`: every model of a running server, where it is and what it takes."""

from __future__ import annotations

import typer

from enginebay.cli.admin_client import Json, Key, Url, look
from enginebay.cli.output import emit_json, table

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help="Show a server's models."
)


@app.command()
def ps(url: Url = None, key: Key = None, json: Json = False) -> None:
    """Every model of a running server: its engine and state, requests, memory, and how it was last made ready."""
    from enginebay.cli.fleet_rows import PS_COLUMNS, ps_notes, ps_rows

    found = look(url, key, "ps")
    if json:
        emit_json(found)
        return
    table(PS_COLUMNS, ps_rows(found))
    for line in ps_notes(found):
        print(line)
