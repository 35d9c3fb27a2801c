"""`bay reload`: have a running server take in its changed configuration."""

from __future__ import annotations

import typer

from enginebay.cli.admin.admin_client import JsonOption, KeyOption, UrlOption, post_admin
from enginebay.cli.output.console import emit_json
from enginebay.util.text_format import pluralize

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Have a running server take in its changed configuration.",
)


@app.command()
def reload(url: UrlOption = None, key: KeyOption = None, json: JsonOption = False) -> None:
    """Take in the configuration anew, all of it or nothing when something is wrong with it; and the API keys."""
    found = post_admin(url, key, "reload", {}, "taking in the configuration")
    if json:
        emit_json(found)
        return
    keys = found.pop("keys", None)
    for what, names in found.items():
        if names:
            print(f"{what}: {', '.join(names)}")
    if not any(found.values()):
        print("the configuration is taken in; no model has changed")
    if keys is not None:  # an older server does not tell
        print(
            f"{pluralize(keys, 'API key')} known"
            if keys
            else "there is no API key: whoever reaches the server may use it"
        )
