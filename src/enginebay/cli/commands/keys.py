"""`bay keys`: create, list and revoke the server's API keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from enginebay.cli.output.console import emit_json, note, print_table

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Create, list and revoke API keys of the server.",
)

JsonOption = Annotated[bool, typer.Option("--json", help="For programs")]
FileOption = Annotated[
    Path | None,
    typer.Option("--file", help="Key file; else server.keys_file of the config, else keys.yaml in ENGINEBAY_HOME"),
]
RateOption = Annotated[
    int | None, typer.Option(min=1, help="At most so many in a minute; without it there is no limit")
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What to call the key, for you and for the log")],
    admin: Annotated[
        bool, typer.Option("--admin", help="With the scope admin as well, for endpoints that manage the server")
    ] = False,
    requests_per_minute: RateOption = None,
    tokens_per_minute: RateOption = None,
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Make a key and print it. It is shown this once: only its hash is kept."""
    from enginebay.server.auth.api_keys import create_key

    path = _resolve_file(file)
    text, created = create_key(
        path,
        name,
        admin=admin,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
    )
    if json:
        emit_json({**created.to_json(), "key": text})
    else:
        print(text)
    note(
        f"{name} is in {path}; keep the key now, it is not shown again. A server that runs takes it after `bay reload`"
    )


@app.command("list")
def list_keys_command(file: FileOption = None, json: JsonOption = False) -> None:
    """The keys there are, without their secrets."""
    from enginebay.server.auth.api_keys import list_keys

    path = _resolve_file(file)
    stored = [one.to_json() for one in list_keys(path)]
    if json:
        emit_json(stored)
    elif stored:
        rows = [[", ".join(value) if isinstance(value, list) else value for value in one.values()] for one in stored]
        print_table(("ID", "NAME", "SCOPES", "REQUESTS/MIN", "TOKENS/MIN", "CREATED"), rows)
    else:
        note(f"there are no keys in {path}; make one: bay keys create NAME")


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="NAME_OR_ID", help="Name or id of the key")], file: FileOption = None
) -> None:
    """Take a key out of the file. A running server goes on accepting it until it reads the file again."""
    from enginebay.server.auth.api_keys import revoke_key

    revoked = revoke_key(_resolve_file(file), key)
    note(f"{revoked.key.name} ({revoked.id}) is revoked; a server that runs takes it until `bay reload` or SIGHUP")


def _resolve_file(given: Path | None) -> Path:
    from enginebay.config.loader import load_config
    from enginebay.server.auth.api_keys import default_key_file

    return given or load_config(None).server.keys_file or default_key_file()
