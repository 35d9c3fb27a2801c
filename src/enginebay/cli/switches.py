"""`bay switches`: how long it took to make models ready, phase by phase."""

from __future__ import annotations

import typer

from enginebay.cli.admin_client import Json, Key, Url, look
from enginebay.cli.output import emit_json, note, table

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help="Show the last model switches."
)


@app.command()
def switches(url: Url = None, key: Key = None, json: Json = False) -> None:
    """The last times a running server made a model ready: from where, in place of whom, and how long each phase took."""
    from enginebay.cli.fleet_rows import switch_note, switch_table

    found = look(url, key, "switches")
    if json:
        emit_json(found)
    elif found["switches"]:
        table(*switch_table(found))
        print(switch_note(found))
    else:
        note("no model has been loaded yet")
