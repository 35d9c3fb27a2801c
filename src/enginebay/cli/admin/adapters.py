"""`bay adapters`: add and remove LoRA adapters on a running server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from enginebay.cli.admin.admin_client import KeyFileOption, KeyOption, ServerConfigOption, UrlOption, post_admin
from enginebay.cli.options.command_app import JsonOption, create_app
from enginebay.cli.output.console import emit_json

app = create_app(help="Add and remove LoRA adapters on a running server.", no_args_is_help=True)
ModelArgument = Annotated[str, typer.Argument(help="The base model of the adapter")]
NameArgument = Annotated[str, typer.Argument(help="The adapter's name; clients send it as the model")]


@app.command()
def add(
    model: ModelArgument,
    name: NameArgument,
    path: Annotated[Path, typer.Argument(help="Path of the adapter on the server's host")],
    url: UrlOption = None,
    config: ServerConfigOption = None,
    key: KeyOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Add a LoRA adapter to a model until the next reload. To keep it, add it to the configuration."""
    absolute = os.path.normpath(Path.cwd() / path.expanduser())
    status = post_admin(
        url, key, "adapters", {"model": model, "name": name, "path": absolute}, f"adding {name} to {model}"
    )
    _print_result(status, json)


@app.command()
def remove(
    model: ModelArgument,
    name: NameArgument,
    url: UrlOption = None,
    config: ServerConfigOption = None,
    key: KeyOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a LoRA adapter from a model."""
    status = post_admin(url, key, "adapters/remove", {"model": model, "name": name}, f"removing {name} from {model}")
    _print_result(status, json)


def _print_result(status: dict[str, Any], json: bool) -> None:
    from enginebay.cli.output.fleet_tables import describe_model

    if json:
        emit_json(status)
    else:
        print(f"{describe_model(status)}; adapters: {', '.join(status['adapters']) or 'none'}")
