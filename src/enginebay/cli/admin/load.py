"""`bay load MODEL`: load a model on a running server."""

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
    help="Load a model on a running server.",
)


@app.command()
def load(
    model: Annotated[str, typer.Argument(help="A model of the server; see `bay ps`")],
    url: UrlOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Load a model before the first request. Evicts other models if memory is short; retries a model in a crash loop."""
    from enginebay.cli.output.fleet_tables import describe_model

    model_status = post_admin(url, key, "load", {"model": model}, f"loading {model}")
    emit_json(model_status) if json else print(describe_model(model_status))
