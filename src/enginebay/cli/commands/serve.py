"""`bay serve [MODEL...]`: serve models over the OpenAI, Anthropic and Ollama APIs."""

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
from enginebay.cli.options import stack_options
from enginebay.cli.options.command_app import create_app
from enginebay.cli.output.console import note
from enginebay.config.loader import load_config
from enginebay.config.preset_registry import find_preset
from enginebay.config.resolved_config import Config
from enginebay.errors import ConfigError, EnginebayError

if TYPE_CHECKING:
    from enginebay.fleet.lifecycle.launch_plan import Say
    from enginebay.fleet.lifecycle.replica import Replica
    from enginebay.server.auth.api_keys import Keyring
    from enginebay.server.supervisor.desired_state import DesiredState

app = create_app()


@app.command()
def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...", help="Models to serve (default: the configured ones, else the embedded one)"
        ),
    ] = None,
    *,
    engine: stack_options.EngineOption = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on (default: 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", help="Port; 0: any free port (default: 8000)")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Server processes that share the models (default: 1)")
    ] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option("--keys-file", help="API key file; see `bay keys` (default: keys.yaml in ENGINEBAY_HOME)"),
    ] = None,
    allow_without_key: Annotated[
        bool | None, typer.Option("--allow-without-key", help="Allow other hosts to connect without an API key")
    ] = None,
    log_format: Annotated[str | None, typer.Option("--log-format", help="text or json (default: text)")] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="debug, info, warning or error (default: info)")
    ] = None,
    config: stack_options.ConfigOption = None,
    preset: stack_options.PresetOption = None,
    set_: stack_options.SetOption = None,
    offline: stack_options.OfflineOption = None,
    strict: stack_options.StrictOption = False,
) -> None:
    """Serve models over the OpenAI, Anthropic and Ollama APIs until Ctrl-C or SIGTERM."""
    keys, settings = stack_options.split_assignments(set_)
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
    _run_server(ServeOptions(config, preset, flags, models or [], engine, settings, strict))


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The command line, kept to reload the configuration."""

    config: Path | None
    preset: str | None
    flags: dict[str, Any]
    models: list[str]
    engine: str | None
    settings: dict[str, Any]
    strict: bool

    def read_config(self) -> Config:
        return load_config(self.config, preset=self.preset, flags=self.flags, strict=self.strict)


def _run_server(options: ServeOptions) -> None:
    import uvloop

    from enginebay.server.supervisor.listen_socket import bind_socket, build_url
    from enginebay.server.supervisor.shutdown_signals import ReloadSignal
    from enginebay.server.telemetry.log_format import format_json_line
    from enginebay.util.file_limits import raise_open_file_limit

    hangups = ReloadSignal()
    raise_open_file_limit()
    config = options.read_config()
    keyring = _load_keyring(config)
    as_json = config.server.log_format == "json"
    progress = stack_options.StatusLine(after_s=float("inf") if as_json else 0.0)
    stack_options.show_warnings([*keyring.warnings, *map(str, config.warnings)])
    sock = bind_socket(config.server, keyring)
    desired = _build_desired_state(options, config, keyring, progress.update)
    stack_options.show_warnings(_find_gpu_clashes(desired))
    unused_preset = _find_unused_preset(options, desired)
    if unused_preset and options.strict:
        raise ConfigError(unused_preset[0], "use a preset of that engine, or none", param="preset")

    def ready(replicas: list[Replica], failures: dict[str, EnginebayError]) -> None:
        progress.clear()
        stack_options.show_warnings([*_find_unused_standbys(desired), *unused_preset])
        known = list(map(str, config.warnings))
        for replica in replicas:
            _announce_model(replica, failures.get(replica.name), known, announce)
        announce(
            f"serving at {build_url(sock)} (documentation: {build_url(sock)}/docs)", "serving", url=build_url(sock)
        )

    def announce(text: str, event: str, **fields: Any) -> None:
        """Print text, or a log line with `server.log_format: json`."""
        note(format_json_line(time.time(), "info", event, fields) if as_json else text)

    def reload() -> DesiredState:
        config = options.read_config()
        return _build_desired_state(options, config, _load_keyring(config), lambda _: None)

    async def run() -> None:
        from enginebay.server.supervisor.supervisor import Supervisor

        await Supervisor(desired, sock, progress.update, ready, reload, _load_keyring, hangups).serve()

    run_in_loop(run(), uvloop.new_event_loop)
    sys.stderr.flush()


def _load_keyring(config: Config) -> Keyring:
    from enginebay.server.auth.api_keys import Keyring

    return Keyring.load(config.server.keys_file, os.environ)


def _find_unused_standbys(desired: DesiredState) -> list[str]:
    """Return a warning per standby engine that no model of this server uses."""
    used = {variant.kind for variant in desired.variants}
    return [f"fleet.standby: no model runs on {kind}" for kind in desired.config.fleet.standby if kind not in used]


def _find_gpu_clashes(desired: DesiredState) -> list[str]:
    from enginebay.fleet.routing.variants import find_gpu_clashes

    return find_gpu_clashes(desired.variants, desired.config)


def _find_unused_preset(options: ServeOptions, desired: DesiredState) -> list[str]:
    """Warn if no model of this server runs on the preset's engine, unless the configuration already warns."""
    if options.preset is None or any(warning.key == "preset" for warning in desired.config.warnings):
        return []
    kind = find_preset(options.preset).engine
    used = sorted({variant.kind for variant in desired.variants})
    return (
        [] if kind in used else [f"preset {options.preset} applies to {kind} only, and models run on {', '.join(used)}"]
    )


def _build_desired_state(options: ServeOptions, config: Config, keyring: Keyring, say: Say) -> DesiredState:
    from enginebay.fleet.routing.variants import build_variants
    from enginebay.server.supervisor.desired_state import DesiredState

    names: list[str | None] = [*(options.models or config.models)] or [None]
    variants = build_variants(
        config, names, engine=options.engine, settings=options.settings, strict=options.strict, say=say
    )  # fmt: skip
    return DesiredState(config, tuple(variants), keyring)


def _announce_model(
    replica: Replica, failure: EnginebayError | None, known: list[str], announce: Callable[..., None]
) -> None:
    from enginebay.fleet.scheduling.wait_estimate import state_label

    plan, facts = replica.variant.plan, replica.facts
    error = replica.variant.error or failure
    if plan is None or error is not None:
        assert error is not None
        reason = error.message if error.message.startswith(f"{replica.name} ") else f"{replica.name}: {error.message}"
        stack_options.show_warnings([reason + (f"; {error.hint}" if error.hint else "")])
        return
    facts_warnings = facts.warnings if facts is not None else ()
    stack_options.show_warnings([line for line in (*plan.warnings, *facts_warnings) if line not in known])
    if facts is None or not replica.ready:
        if replica.variant.primary:
            announce(f"{replica.name} on {plan.spec.kind} is {state_label(replica)}, loaded on the first request", "offered",
                     model=replica.name, engine=plan.spec.kind)  # fmt: skip
        return
    engine = f"{facts.kind} {facts.version}"
    text = f"{replica.name} on {engine}, loaded in {facts.load_s:.1f} s"
    announce(text, "loaded", model=replica.name, engine=engine, load_s=facts.load_s)
