"""`bay switch FROM TO`: replace one model on a running server with another."""

from __future__ import annotations

from typing import Annotated

import typer

from enginebay.cli.admin.admin_client import KeyFileOption, KeyOption, ServerConfigOption, UrlOption, post_admin
from enginebay.cli.options.command_app import JsonOption, create_app
from enginebay.cli.output.console import emit_json

app = create_app(help="Switch a running server from one model to another.", no_args_is_help=True)


@app.command()
def switch(
    leaving: Annotated[
        str,
        typer.Argument(metavar="FROM", help="The model to put to sleep or unload, after its running requests finish"),
    ],
    coming: Annotated[str, typer.Argument(metavar="TO", help="The model to load or wake")],
    url: UrlOption = None,
    config: ServerConfigOption = None,
    key: KeyOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Put one model to sleep, or unload it if it cannot sleep, and load another."""
    from enginebay.cli.output.fleet_tables import describe_model

    status = post_admin(url, key, "switch", {"from": leaving, "to": coming}, f"switching from {leaving} to {coming}")
    emit_json(status) if json else print(f"{describe_model(status)}; {leaving} is {status.get('left', 'gone')}")
