"""`bay sleep MODEL`: have a running server put a model to sleep."""

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
    help="Put a model of a running server to sleep.",
)


@app.command()
def sleep(
    model: Annotated[str, typer.Argument(help="A model of the server; `bay ps` lists them")],
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Put a model to sleep after its last answer: on a GPU its memory is free for others. The next request wakes it."""
    from enginebay.cli.fleet_rows import outcome

    found = order(url, key, "sleep", {"model": model}, f"putting {model} to sleep")
    emit_json(found) if json else print(outcome(found))
