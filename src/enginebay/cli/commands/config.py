"""`bay config`: validate the configuration, show the effective values, print the schema, trust a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.options.command_app import JsonOption, create_app, pick_config_file

if TYPE_CHECKING:
    from enginebay.config import resolved_config
    from enginebay.config.entries.config_entry import ConfigProblem

app = create_app(no_args_is_help=True)

FileArgument = Annotated[
    Path | None,
    typer.Argument(help="Config file (default: ENGINEBAY_CONFIG, ./enginebay.yaml or config.yaml in ENGINEBAY_HOME)"),
]
SameFileOption = Annotated[Path | None, typer.Option("--config", "-c", help="Same as FILE")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Treat keys without effect as errors")]
EngineOption = Annotated[str | None, typer.Option("--engine", help="Validate for this engine")]
PresetOption = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="Preset to start from; the file overrides it. See `bay presets`"),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a dotted key; repeatable")
]


@app.callback()
def main() -> None:
    """Validate and show the configuration."""


@app.command()
def validate(
    file: FileArgument = None, config_file: SameFileOption = None, strict: StrictOption = False, json: JsonOption = False, engine: EngineOption = None,
    preset: PresetOption = None, set_: SetOption = None,
) -> None:  # fmt: skip
    """Check the configuration and print one line per problem. Exits with 2 if there are any.

    Engines and models missing on this host are only warnings: the configuration may be for another host.
    """
    from enginebay.cli.output.console import emit_json, note
    from enginebay.config.loader import to_config_error, validate_config
    from enginebay.util.text_format import pluralize

    result = validate_config(
        pick_config_file(file, config_file), preset=preset, flags=_build_flags(engine, set_), strict=strict
    )
    config = result.config
    problems = result.problems or _find_fatal(config)
    warnings = [*config.warnings, *([] if problems else _find_missing(config))]
    if json:
        emit_json(
            {
                "ok": not problems,
                "file": None if config.path is None else str(config.path),
                "trusted": config.trusted,
                "problems": [problem.to_json() for problem in problems],
                "warnings": [
                    {"key": warning.key, "message": warning.message, "where": warning.where} for warning in warnings
                ],
            }
        )
        raise typer.Exit(2 if problems else 0)
    if problems:
        raise to_config_error(problems)
    for warning in warnings:
        note(f"warning: {warning}")
    counted = f", {pluralize(len(warnings), 'warning')}" if warnings else ""
    untrusted = "" if config.trusted else " (not trusted: see `bay config trust --help`)"
    print(f"{config.path or 'no config file, defaults only'}: ok{counted}{untrusted}")


@app.command()
def show(
    file: FileArgument = None, config_file: SameFileOption = None, strict: StrictOption = False, json: JsonOption = False, engine: EngineOption = None,
    preset: PresetOption = None, set_: SetOption = None,
) -> None:  # fmt: skip
    """Print the effective configuration with the origin of each value."""
    from enginebay.cli.output.console import emit_json, note
    from enginebay.config.config_dump import to_json, to_yaml
    from enginebay.config.loader import load_config

    config = load_config(
        pick_config_file(file, config_file), preset=preset, flags=_build_flags(engine, set_), strict=strict
    )
    if json:
        emit_json(to_json(config))
        return
    for warning in config.warnings:
        note(f"warning: {warning}")
    print(to_yaml(config), end="")


@app.command()
def schema(json: JsonOption = False) -> None:
    """Print the JSON schema of the config file, for editors. Always JSON."""
    from enginebay.cli.output.console import emit_json
    from enginebay.config.config_schema import build_json_schema
    from enginebay.engines.registry import load_specs

    emit_json(build_json_schema(load_specs()))


@app.command()
def trust(
    file: Annotated[Path, typer.Argument(help="Config file to trust")] = Path("enginebay.yaml"),
    revoke: Annotated[bool, typer.Option("--revoke", help="Stop trusting it")] = False,
) -> None:
    """Allow a config file to use secrets, remote URLs and code, until its content changes.

    Only a file that is found as ./enginebay.yaml needs it: anybody could have put it into the directory. One that you
    pass with -c, or that ENGINEBAY_CONFIG or ENGINEBAY_HOME names, is always trusted.
    """
    from enginebay.config.loader import inspect_file
    from enginebay.config.trusted_files import revoke_trust, trust_file
    from enginebay.server.telemetry.log_format import escape_unprintable

    if revoke:
        print(f"{file}: no longer trusted" if revoke_trust(file) else f"{file}: was not trusted")
        return
    content, granted = inspect_file(file)
    for key in granted:
        print(escape_unprintable(f"{key.origin}: {key.key}: {key.sensitive}"))
    trust_file(file, content)
    print(f"{file}: trusted as it is now; trust it again after a change")


def _find_fatal(config: resolved_config.Config) -> tuple[ConfigProblem, ...]:
    from enginebay.cli.commands.config_host_check import find_fatal_problems

    return tuple(find_fatal_problems(config))


def _find_missing(config: resolved_config.Config) -> list[resolved_config.ConfigWarning]:
    from enginebay.cli.commands.config_host_check import find_missing_on_host

    return find_missing_on_host(config)


def _build_flags(engine: str | None, assignments: list[str] | None) -> dict[str, Any]:
    from enginebay.config.layers.layer_sources import parse_assignments

    return {**parse_assignments(assignments or []), **({"engine": engine} if engine else {})}
