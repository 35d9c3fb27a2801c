"""`bay switch A B`: have one model of a running server leave and another come."""

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
    help="Switch a running server from one model to another.",
)


@app.command()
def switch(
    leaving: Annotated[str, typer.Argument(metavar="FROM", help="The model that leaves, after its last answer")],
    coming: Annotated[str, typer.Argument(metavar="TO", help="The model that comes")],
    url: UrlOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Have one model leave, to sleep if it can, and another come."""
    from enginebay.cli.output.fleet_tables import describe_model

    found = post_admin(url, key, "switch", {"from": leaving, "to": coming}, f"switching from {leaving} to {coming}")
    emit_json(found) if json else print(f"{describe_model(found)}; {leaving} is {found.get('left', 'gone')}")
