"""`bay unload MODEL`: have a running server end a model's worker."""

from __future__ import annotations

from typing import Annotated

import typer

from enginebay.cli.admin_client import Json, Key, Url, order
from enginebay.cli.output import emit_json

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
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Unload a model after its last answer. It is loaded again when a request asks for it."""
    from enginebay.cli.fleet_rows import outcome

    found = order(url, key, "unload", {"model": model}, f"unloading {model}")
    emit_json(found) if json else print(outcome(found))
