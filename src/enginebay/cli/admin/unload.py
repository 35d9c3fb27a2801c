"""`bay unload MODEL`: unload a model from a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from enginebay.cli.admin.admin_client import KeyFileOption, KeyOption, ServerConfigOption, UrlOption, post_admin
from enginebay.cli.options.command_app import JsonOption, create_app
from enginebay.cli.output.console import emit_json

app = create_app(help="Unload a model from a running server.", no_args_is_help=True)


@app.command()
def unload(
    model: Annotated[str, typer.Argument(help="A model on the server; see `bay ps`")],
    url: UrlOption = None,
    config: ServerConfigOption = None,
    key: KeyOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Unload a model after its running requests finish. The next request loads it again."""
    from enginebay.cli.output.fleet_tables import describe_model

    status = post_admin(url, key, "unload", {"model": model}, f"unloading {model}")
    emit_json(status) if json else print(describe_model(status))
