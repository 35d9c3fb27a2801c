"""`bay adapters`: LoRA adapters of a running server, added and removed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from enginebay.cli.admin.admin_client import JsonOption, KeyOption, UrlOption, post_admin
from enginebay.cli.output.console import emit_json

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Add and remove LoRA adapters of a running server.",
)
ModelArgument = Annotated[str, typer.Argument(help="The model that the adapter was made for")]
NameArgument = Annotated[str, typer.Argument(help="The adapter, as clients ask for it in place of a model")]


@app.command()
def add(
    model: ModelArgument,
    name: NameArgument,
    path: Annotated[Path, typer.Argument(help="Where it lies on the server's host")],
    url: UrlOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Add a LoRA adapter to a model, until the next reload; the configuration is for those that stay."""
    where = os.path.normpath(Path.cwd() / path.expanduser())
    found = post_admin(url, key, "adapters", {"model": model, "name": name, "path": where}, f"adding {name} to {model}")
    _print_result(found, json)


@app.command()
def remove(
    model: ModelArgument, name: NameArgument, url: UrlOption = None, key: KeyOption = None, json: JsonOption = False
) -> None:
    """Remove a LoRA adapter from a model."""
    found = post_admin(url, key, "adapters/remove", {"model": model, "name": name}, f"removing {name} from {model}")
    _print_result(found, json)


def _print_result(found: dict[str, Any], json: bool) -> None:
    from enginebay.cli.output.fleet_tables import describe_model

    if json:
        emit_json(found)
    else:
        print(f"{describe_model(found)}; adapters: {', '.join(found['adapters']) or 'none'}")
