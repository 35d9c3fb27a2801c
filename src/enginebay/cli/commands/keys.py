"""`bay keys`: create, list and revoke the server's API keys, and print its local admin token."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from enginebay.cli.admin.admin_client import UrlOption
from enginebay.cli.options.command_app import ConfigOption, JsonOption, create_app
from enginebay.cli.output.console import emit_json, note, print_table

app = create_app(help="Create, list and revoke API keys.", no_args_is_help=True)

FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file", help="Key file (default: server.keys_file from the configuration, else keys.yaml in ENGINEBAY_HOME)"
    ),
]
RateOption = Annotated[int | None, typer.Option(min=1, help="Limit per minute (default: none)")]
WeightOption = Annotated[int, typer.Option(min=1, help="Share of a busy model, relative to other keys")]
MaxRunningOption = Annotated[
    int | None, typer.Option(min=1, help="Maximum concurrent requests of this key, per model (default: no limit)")
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the key, shown in lists and logs")],
    admin: Annotated[
        bool, typer.Option("--admin", help="Add the admin scope, for endpoints that manage the server")
    ] = False,
    requests_per_minute: RateOption = None,
    tokens_per_minute: RateOption = None,
    weight: WeightOption = 1,
    max_running: MaxRunningOption = None,
    file: FileOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Create a key and print it. It is shown only once: the file keeps its hash."""
    from enginebay.server.auth.api_keys import create_key

    path = _resolve_file(file, config)
    text, created = create_key(
        path, name, admin=admin, requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute,
        weight=weight, max_running=max_running,
    )  # fmt: skip
    if json:
        emit_json({**created.to_json(), "key": text})
    else:
        print(text)
    note(
        f"added {name} to {path}; save the key now, it is not shown again. A running server accepts it after `bay reload`"
    )


@app.command("list")
def list_keys_command(file: FileOption = None, config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the keys, without their secrets."""
    from enginebay.server.auth.api_keys import list_keys

    path = _resolve_file(file, config)
    stored = [key.to_json() for key in list_keys(path)]
    if json:
        emit_json(stored)
    elif stored:
        rows = [[", ".join(value) if isinstance(value, list) else value for value in key.values()] for key in stored]
        print_table(("id", "name", "scopes", "requests/min", "tokens/min", "weight", "max running", "created"), rows)
    else:
        note(f"no keys in {path}; create one: bay keys create NAME")


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="NAME_OR_ID", help="Name or id of the key")],
    file: FileOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove a key from the file. A running server accepts it until it reloads."""
    from enginebay.server.auth.api_keys import revoke_key

    revoked = revoke_key(_resolve_file(file, config), key)
    note(f"{revoked.key.name} ({revoked.id}) is revoked; a running server accepts it until `bay reload` or SIGHUP")


@app.command()
def token(url: UrlOption = None) -> None:
    """Print the local admin token of a server without API keys, for other programs that call /admin.

    Send it as `x-enginebay-token: TOKEN`. A server writes a new one at each start; `bay` finds it by itself.
    """
    from enginebay.cli.admin.server_address import resolve_server
    from enginebay.errors import EnginebayError
    from enginebay.util.http_policy import build_token_headers

    server = resolve_server(url)
    headers = build_token_headers(server.url)
    if not headers:
        raise EnginebayError(
            f"no server of yours runs at {server.url} on this host",
            "start one with `bay serve`, or pass --url; a server of another user or host needs an API key",
        )
    print(*headers.values())


def _resolve_file(file: Path | None, config: Path | None) -> Path:
    from enginebay.config.loader import load_config
    from enginebay.server.auth.api_keys import default_key_file

    return file or load_config(config).server.keys_file or default_key_file()
