"""`bay load MODEL`: have a running server load a model now."""

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
    help="Load a model of a running server.",
)


@app.command()
def load(
    model: Annotated[str, typer.Argument(help="A model of the server; `bay ps` lists them")],
    url: UrlOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Load a model before anybody asks for it. Others leave for it if they must; one that kept failing is tried again."""
    from enginebay.cli.output.fleet_tables import describe_model

    found = post_admin(url, key, "load", {"model": model}, f"loading {model}")
    emit_json(found) if json else print(describe_model(found))
