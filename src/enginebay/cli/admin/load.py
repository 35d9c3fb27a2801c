"""`bay load MODEL`: load a model on a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from enginebay.cli.admin.admin_client import KeyFileOption, KeyOption, ServerConfigOption, UrlOption, post_admin
from enginebay.cli.options.command_app import JsonOption, create_app
from enginebay.cli.output.console import emit_json

app = create_app(help="Load a model on a running server.", no_args_is_help=True)


@app.command()
def load(
    model: Annotated[str, typer.Argument(help="A model on the server; see `bay ps`")],
    url: UrlOption = None,
    config: ServerConfigOption = None,
    key: KeyOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Load a model before the first request. Evicts other models if memory is short; retries a model in a crash loop."""
    from enginebay.cli.output.fleet_tables import describe_model

    status = post_admin(url, key, "load", {"model": model}, f"loading {model}")
    emit_json(status) if json else print(describe_model(status))
