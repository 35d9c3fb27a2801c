"""`bay ps`: the models of a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from enginebay.cli.admin.admin_client import KeyFileOption, KeyOption, ServerConfigOption, UrlOption, get_admin
from enginebay.cli.options.command_app import JsonOption, create_app
from enginebay.cli.output.console import emit_json, print_summary, print_table

app = create_app(help="Show a server's models.")

VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Also show why each model has its GPUs")]


@app.command()
def ps(
    url: UrlOption = None,
    config: ServerConfigOption = None,
    key: KeyOption = None,
    key_file: KeyFileOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
) -> None:
    """Show every model on a running server: engine, state, requests, memory, GPUs and last switch."""
    from enginebay.cli.output.fleet_tables import build_ps_notes, build_ps_table

    status = get_admin(url, key, "ps")
    if json:
        emit_json(status)
        return
    print_table(*build_ps_table(status, verbose))
    for line in build_ps_notes(status):
        print_summary(line)
