"""`bay unload MODEL`: have a running server end a model's worker."""

from __future__ import annotations

from typing import Annotated

import typer

from enginebay.cli.admin.admin_client import JsonOption, KeyOption, UrlOption, post_admin
from enginebay.cli.output.console import emit_json

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Unload a model of a running server.",
)


@app.command()
def unload(
    model: Annotated[str, typer.Argument(help="A model of the server; `bay ps` lists them")],
    url: UrlOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Unload a model after its last answer. It is loaded again when a request asks for it."""
    from enginebay.cli.output.fleet_tables import describe_model

    found = post_admin(url, key, "unload", {"model": model}, f"unloading {model}")
    emit_json(found) if json else print(describe_model(found))
