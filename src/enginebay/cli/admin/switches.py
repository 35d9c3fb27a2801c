"""`bay switches`: how long it took to make models ready, phase by phase."""

from __future__ import annotations

import typer

from enginebay.cli.admin.admin_client import JsonOption, KeyOption, UrlOption, get_admin
from enginebay.cli.output.console import emit_json, note, print_table

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help="Show the last model switches."
)


@app.command()
def switches(url: UrlOption = None, key: KeyOption = None, json: JsonOption = False) -> None:
    """The last times a running server made a model ready: from where, in place of whom, and how long each phase took."""
    from enginebay.cli.output.fleet_tables import build_switch_table, summarize_switches

    found = get_admin(url, key, "switches")
    if json:
        emit_json(found)
    elif found["switches"]:
        print_table(*build_switch_table(found))
        print(summarize_switches(found))
    else:
        note("no model has been loaded yet")
