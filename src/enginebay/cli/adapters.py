"""`bay adapters`: LoRA adapters of a running server, added and removed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from enginebay.cli.admin_client import Json, Key, Url, order
from enginebay.cli.output import emit_json

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Add and remove LoRA adapters of a running server.",
)
Model = Annotated[str, typer.Argument(help="The model that the adapter was made for")]
Name = Annotated[str, typer.Argument(help="The adapter, as clients ask for it in place of a model")]


@app.command()
def add(
    model: Model,
    name: Name,
    path: Annotated[Path, typer.Argument(help="Where it lies on the server's host")],
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Add a LoRA adapter to a model, until the next reload; the configuration is for those that stay."""
    where = os.path.normpath(Path.cwd() / path.expanduser())
    found = order(url, key, "adapters", {"model": model, "name": name, "path": where}, f"adding {name} to {model}")
    _tell(found, json)


@app.command()
def remove(model: Model, name: Name, url: Url = None, key: Key = None, json: Json = False) -> None:
    """Remove a LoRA adapter from a model."""
    found = order(url, key, "adapters/remove", {"model": model, "name": name}, f"removing {name} from {model}")
    _tell(found, json)


def _tell(found: dict[str, Any], json: bool) -> None:
    from enginebay.cli.fleet_rows import outcome

    if json:
        emit_json(found)
    else:
        print(f"{outcome(found)}; adapters: {', '.join(found['adapters']) or 'none'}")
