"""`bay sleep MODEL`: put a model on a running server to sleep."""

from __future__ import annotations

from typing import Annotated

import typer

from enginebay.cli.admin.admin_client import KeyFileOption, KeyOption, ServerConfigOption, UrlOption, post_admin
from enginebay.cli.options.command_app import JsonOption, create_app
from enginebay.cli.output.console import emit_json

app = create_app(help="Put a model on a running server to sleep.", no_args_is_help=True)


@app.command()
def sleep(
    model: Annotated[str, typer.Argument(help="A model on the server; see `bay ps`")],
    url: UrlOption = None,
    config: ServerConfigOption = None,
    key: KeyOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Put a model to sleep after its running requests finish. This frees its GPU memory. The next request wakes it."""
    from enginebay.cli.output.fleet_tables import describe_model

    status = post_admin(url, key, "sleep", {"model": model}, f"putting {model} to sleep")
    emit_json(status) if json else print(describe_model(status))
