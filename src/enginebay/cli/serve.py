"""`bay serve [MODEL...]`: models behind the OpenAI-compatible API."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.event_loop import run_in_loop
from enginebay.cli.lifeline import end_with_stdin
from enginebay.cli.output import note
from enginebay.cli.stack_options import (
    ConfigFile,
    Engine,
    Offline,
    Preset,
    Progress,
    Set,
    Strict,
    keys_and_settings,
    show_warnings,
)
from enginebay.config.load import load_config
from enginebay.config.model import Config
from enginebay.config.presets import find_preset
from enginebay.errors import ConfigError

if TYPE_CHECKING:
    from enginebay.fleet.place import Place
    from enginebay.fleet.plan import Say
    from enginebay.server.keys import Keyring
    from enginebay.server.wanted import Wanted

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
    preset: Preset = None,
    set_: Set = None,
    offline: Offline = None,
    strict: Strict = False,
    until_stdin_ends: Annotated[
        bool, typer.Option("--until-stdin-ends", hidden=True, help="End with the program that started this one")
    ] = False,
) -> None:
    """Serve models over the OpenAI-compatible API until Ctrl-C or SIGTERM."""
    if until_stdin_ends:
        end_with_stdin()
    keys, settings = keys_and_settings(set_)
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
    flags = {**keys, **{name: value for name, value in flags.items() if value is not None}}
    asked = Asked(config, preset, flags, models or [], engine, settings, strict)
    _serve(asked)


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line, to be read once more when the configuration has changed."""

    config: Path | None
    preset: str | None
    flags: dict[str, Any]
    models: list[str]
    engine: str | None
    settings: dict[str, Any]
    strict: bool

    def load(self) -> Config:
        return load_config(self.config, preset=self.preset, flags=self.flags, strict=self.strict)


def _serve(asked: Asked) -> None:
    import uvloop

    from enginebay.open_files import allow_most_open_files
    from enginebay.server.listening import bind, url_of
    from enginebay.server.log_lines import json_line
    from enginebay.server.signals import Hangups

    hangups = Hangups()
    allow_most_open_files()
    config = asked.load()
    keyring = _keyring(config)
    as_json = config.server.log_format == "json"
    progress = Progress(after_s=float("inf") if as_json else 0.0)
    show_warnings([*keyring.warnings, *map(str, config.warnings)])
    sock = bind(config.server, keyring)
    wanted = _wanted(asked, config, keyring, progress.say)
    idle_preset = _idle_preset(asked, wanted)
    if idle_preset and asked.strict:
        raise ConfigError(idle_preset[0], "take a preset of that engine, or none", param="preset")

    def ready(places: list[Place]) -> None:
        progress.clear()
        show_warnings([*_idle_standbys(wanted), *idle_preset])
        known = list(map(str, config.warnings))
        for place in places:
            _announce_model(place, known, announce)
        announce(f"serving at {url_of(sock)} (documentation: {url_of(sock)}/docs)", "serving", url=url_of(sock))

    def announce(text: str, event: str, **fields: Any) -> None:
        """For a person, or as one more line of a log for machines."""
        note(json_line(time.time(), "info", event, fields) if as_json else text)

    def read_again() -> Wanted:
        found = asked.load()
        return _wanted(asked, found, _keyring(found), lambda _: None)

    async def run() -> None:
        from enginebay.server.supervisor import Supervisor

        await Supervisor(wanted, sock, progress.say, ready, read_again, _keyring, hangups).serve()

    run_in_loop(run(), uvloop.new_event_loop)
    sys.stderr.flush()


def _keyring(config: Config) -> Keyring:
    from enginebay.server.keys import Keyring

    return Keyring.load(config.server.keys_file, os.environ)


def _idle_standbys(wanted: Wanted) -> list[str]:
    """Spare processes that no model of this server could ever use."""
    used = {variant.kind for variant in wanted.variants}
    return [f"fleet.standby: no model runs on {kind}" for kind in wanted.config.fleet.standby if kind not in used]


def _idle_preset(asked: Asked, wanted: Wanted) -> list[str]:
    """A preset is for one engine: said where no model of this server runs on it, unless the configuration has said so."""
    if asked.preset is None or any(warning.key == "preset" for warning in wanted.config.warnings):
        return []
    kind = find_preset(asked.preset).engine
    used = sorted({variant.kind for variant in wanted.variants})
    return (
        [] if kind in used else [f"preset {asked.preset} counts on {kind} alone, and models run on {', '.join(used)}"]
    )


def _wanted(asked: Asked, config: Config, keyring: Keyring, say: Say) -> Wanted:
    from enginebay.fleet.variants import make_variants
    from enginebay.server.wanted import Wanted

    names: list[str | None] = [*(asked.models or config.models)] or [None]
    variants = make_variants(
        config, names, engine=asked.engine, settings=asked.settings, strict=asked.strict, say=say
    )  # fmt: skip
    return Wanted(config, tuple(variants), keyring)


def _announce_model(place: Place, known: list[str], announce: Callable[..., None]) -> None:
    from enginebay.fleet.outlook import told

    plan, facts = place.variant.plan, place.facts
    if plan is None:
        error = place.variant.error
        assert error is not None
        show_warnings([f"{place.name}: {error.message}" + (f"; {error.hint}" if error.hint else "")])
        return
    facts_warnings = facts.warnings if facts is not None else ()
    show_warnings([line for line in (*plan.warnings, *facts_warnings) if line not in known])
    if facts is None or not place.ready:
        if place.variant.first:
            announce(f"{place.name} on {plan.spec.kind} is {told(place)}, and loaded when it is asked for", "offered",
                     model=place.name, engine=plan.spec.kind)  # fmt: skip
        return
    engine = f"{facts.kind} {facts.version}"
    said = f"{place.name} on {engine}, loaded in {facts.load_s:.1f} s"
    announce(said, "loaded", model=place.name, engine=engine, load_s=facts.load_s)
