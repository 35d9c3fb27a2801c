"""`bay logs MODEL`: the last lines of a model's worker log."""

from __future__ import annotations

from typing import Annotated

import typer

from enginebay.cli.admin.admin_client import (
    KeyFileOption,
    KeyOption,
    ServerConfigOption,
    ServerUnreachable,
    UrlOption,
    get_admin,
)
from enginebay.cli.options.command_app import JsonOption, create_app
from enginebay.cli.output.console import emit_json, note

app = create_app(help="Show the last lines of a model's log.", no_args_is_help=True)


@app.command()
def logs(
    model: Annotated[str, typer.Argument(help="A model, or MODEL@ENGINE for one of its fallback engines")],
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=10_000, help="Maximum number of lines")] = 100,
    url: UrlOption = None,
    config: ServerConfigOption = None,
    key: KeyOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Show the last log lines of a model's engine. Without a running server, reads the log left in ENGINEBAY_HOME."""
    try:
        tail: list[str] = get_admin(url, key, "logs", model=model, lines=lines)["lines"]
    except ServerUnreachable as missing:
        tail = _read_local_log(model, lines, missing)
    if json:
        emit_json({"lines": tail})
        return
    for line in tail:
        print(line)


def _read_local_log(model: str, lines: int, missing: ServerUnreachable) -> list[str]:
    from enginebay.engines import registry
    from enginebay.errors import UnknownModel
    from enginebay.fleet.lifecycle.worker_logs import find_newest_log, read_last_lines

    path = find_newest_log(model, registry.list_kinds())
    if path is None:
        raise UnknownModel(f"{missing.message}; no log of {model} on this host", missing.hint)
    note(f"{missing.message}; from {path}:")
    return read_last_lines(path, lines)
