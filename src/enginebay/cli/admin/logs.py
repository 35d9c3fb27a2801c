"""`bay logs MODEL`: the end of the log of a model's worker."""

from __future__ import annotations

from typing import Annotated

import typer

from enginebay.cli.admin.admin_client import JsonOption, KeyOption, ServerUnreachable, UrlOption, get_admin
from enginebay.cli.output.console import emit_json, note

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Show the end of a model's log.",
)


@app.command()
def logs(
    model: Annotated[str, typer.Argument(help="A model; MODEL@ENGINE where it falls back to another engine")],
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=10_000, help="So many lines at most")] = 100,
    url: UrlOption = None,
    key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """The last lines that a model's engine wrote. Without a server: what the last one left in ENGINEBAY_HOME."""
    try:
        found: list[str] = get_admin(url, key, "logs", model=model, lines=lines)["lines"]
    except ServerUnreachable as missing:
        found = _read_local_log(model, lines, missing)
    if json:
        emit_json({"lines": found})
        return
    for line in found:
        print(line)


def _read_local_log(model: str, lines: int, missing: ServerUnreachable) -> list[str]:
    from enginebay.engines import registry
    from enginebay.errors import UnknownModel
    from enginebay.fleet.lifecycle.worker_logs import find_newest_log, read_last_lines

    path = find_newest_log(model, registry.list_kinds())
    if path is None:
        raise UnknownModel(f"{missing.message}; and there is no log of {model} on this host", missing.hint)
    note(f"{missing.message}; from {path}:")
    return read_last_lines(path, lines)
