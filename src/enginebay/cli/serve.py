"""`bay serve [MODEL...]`: models behind the OpenAI-compatible API."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from enginebay.cli.output import note
from enginebay.cli.stack_options import ConfigFile, Engine, Offline, Progress, Set, Strict, show_warnings
from enginebay.config.load import load_config
from enginebay.config.model import Config
from enginebay.config.sources import assignment_flags

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...", help="What to serve (default: the configuration's models, else the embedded one)"
        ),
    ] = None,
    *,
    engine: Engine = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on (default: 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", help="Port; 0 for any free one (default: 8000)")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Server processes that share the models (default: 1)")
    ] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option("--keys-file", help="API keys made by `bay keys` (default: keys.yaml in ENGINEBAY_HOME)"),
    ] = None,
    allow_without_key: Annotated[
        bool | None, typer.Option("--allow-without-key", help="Listen beyond this host without any API key")
    ] = None,
    log_format: Annotated[str | None, typer.Option("--log-format", help="text or json (default: text)")] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="debug, info, warning or error (default: info)")
    ] = None,
    config: ConfigFile = None,
    set_: Set = None,
    offline: Offline = None,
    strict: Strict = False,
) -> None:
    """Serve models over the OpenAI-compatible API until Ctrl-C or SIGTERM."""
    flags: dict[str, Any] = {
        "offline": offline,
        "server.host": host,
        "server.port": port,
        "server.workers": workers,
        "server.keys_file": str(keys_file) if keys_file else None,
        "server.allow_without_key": allow_without_key,
        "server.log_format": log_format,
        "server.log_level": log_level,
    }
    found = load_config(config, flags=flags, strict=strict)
    _serve(found, models or [], engine, assignment_flags(set_ or []), strict)


def _serve(config: Config, models: list[str], engine: str | None, settings: dict[str, Any], strict: bool) -> None:
    import uvloop

    from enginebay.fleet.model_worker import ModelWorker
    from enginebay.fleet.plan import make_plan
    from enginebay.server.keys import Keyring
    from enginebay.server.listening import bind, url_of
    from enginebay.server.log_lines import json_line
    from enginebay.server.supervisor import serve as run

    as_json = config.server.log_format == "json"
    progress = Progress(after_s=float("inf") if as_json else 0.0)
    keyring = Keyring.load(config.server.keys_file, os.environ)
    show_warnings([*keyring.warnings, *map(str, config.warnings)])
    sock = bind(config.server, keyring)
    names: list[str | None] = [*(models or config.models)] or [None]
    plans = [
        make_plan(name, engine=engine, config=config, settings=settings, strict=strict, say=progress.say)
        for name in dict.fromkeys(names)
    ]

    def ready(workers: list[ModelWorker]) -> None:
        progress.clear()
        known = list(map(str, config.warnings))
        for worker in workers:
            show_warnings([line for line in (*worker.plan.warnings, *worker.facts.warnings) if line not in known])
            facts = worker.facts
            said = f"{worker.plan.model} on {facts.kind} {facts.version}, loaded in {facts.load_s:.1f} s"
            announce(
                said, "loaded", model=worker.plan.model, engine=f"{facts.kind} {facts.version}", load_s=facts.load_s
            )
        announce(f"serving at {url_of(sock)} (documentation: {url_of(sock)}/docs)", "serving", url=url_of(sock))

    def announce(text: str, event: str, **fields: Any) -> None:
        """For a person, or as one more line of a log for machines."""
        note(json_line(time.time(), "info", event, fields) if as_json else text)

    uvloop.run(run(config, plans, keyring, sock, progress.say, ready))
    sys.stderr.flush()
