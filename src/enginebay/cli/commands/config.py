"""`bay config`: is the configuration right, what is in force, and what may be written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from enginebay.config import resolved_config

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)

FileArgument = Annotated[
    Path | None,
    typer.Argument(help="Config file; else ENGINEBAY_CONFIG, ./enginebay.yaml or config.yaml in ENGINEBAY_HOME"),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The same as FILE, as other commands have it")
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Keys without effect are errors")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON")]
EngineOption = Annotated[str | None, typer.Option("--engine", help="As if this engine were chosen")]
PresetOption = Annotated[str | None, typer.Option("--preset", metavar="NAME", help="Below the file: see `bay presets`")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a dotted key, over all else")
]


@app.callback()
def main() -> None:
    """Validate and show the configuration."""


@app.command()
def validate(
    file: FileArgument = None, config_file: ConfigOption = None, strict: StrictOption = False, json: JsonOption = False, engine: EngineOption = None,
    preset: PresetOption = None, set_: SetOption = None,
) -> None:  # fmt: skip
    """Check the configuration: every problem in one line each; exit code 2 when there is one.

    Engines and models that this host lacks are warnings: the configuration may be meant for another one.
    """
    from enginebay.cli.output.console import emit_json, note
    from enginebay.config.loader import to_config_error, validate_config

    found = validate_config(
        _pick_file(file, config_file), preset=preset, flags=_build_flags(engine, set_), strict=strict
    )
    config, problems = found.config, found.problems
    warnings = [*config.warnings, *([] if problems else _find_missing(config))]
    if json:
        emit_json(
            {
                "ok": not problems,
                "file": None if config.path is None else str(config.path),
                "problems": [problem.to_json() for problem in problems],
                "warnings": [{"key": one.key, "message": one.message, "where": one.where} for one in warnings],
            }
        )
        raise typer.Exit(2 if problems else 0)
    if problems:
        raise to_config_error(problems)
    for warning in warnings:
        note(f"warning: {warning}")
    count = len(warnings)
    counted = f", {count} warning{'s' * (count > 1)}" if count else ""
    print(f"{config.path or 'no config file, defaults only'}: fine{counted}")


@app.command()
def show(
    file: FileArgument = None, config_file: ConfigOption = None, strict: StrictOption = False, json: JsonOption = False, engine: EngineOption = None,
    preset: PresetOption = None, set_: SetOption = None,
) -> None:  # fmt: skip
    """Print the effective configuration, with where each value came from."""
    from enginebay.cli.output.console import emit_json, note
    from enginebay.config.config_dump import to_json, to_yaml
    from enginebay.config.loader import load_config

    config = load_config(_pick_file(file, config_file), preset=preset, flags=_build_flags(engine, set_), strict=strict)
    if json:
        emit_json(to_json(config))
        return
    for warning in config.warnings:
        note(f"warning: {warning}")
    print(to_yaml(config), end="")


@app.command()
def schema(json: JsonOption = False) -> None:
    """Print the JSON schema of the config file, for editors. It is JSON with or without --json."""
    from enginebay.cli.output.console import emit_json
    from enginebay.config.config_schema import build_json_schema
    from enginebay.engines.registry import load_specs

    emit_json(build_json_schema(load_specs()))


def _find_missing(config: resolved_config.Config) -> list[resolved_config.ConfigWarning]:
    from enginebay.cli.commands.config_host_check import find_missing_on_host

    return find_missing_on_host(config)


def _pick_file(file: Path | None, config_file: Path | None) -> Path | None:
    if file is not None and config_file is not None:
        raise typer.BadParameter("name the file once, as FILE or by --config")
    return file if file is not None else config_file


def _build_flags(engine: str | None, assignments: list[str] | None) -> dict[str, Any]:
    from enginebay.config.layers.layer_sources import parse_assignments

    return {**parse_assignments(assignments or []), **({"engine": engine} if engine else {})}
