"""`bay config`: is the configuration right, what is in force, and what may be written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from enginebay.config import model

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)

File = Annotated[
    Path | None,
    typer.Argument(help="Config file; else ENGINEBAY_CONFIG, ./enginebay.yaml or config.yaml in ENGINEBAY_HOME"),
]
Config = Annotated[Path | None, typer.Option("--config", "-c", help="The same as FILE, as other commands have it")]
Strict = Annotated[bool, typer.Option("--strict", help="Keys without effect are errors")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON")]
Engine = Annotated[str | None, typer.Option("--engine", help="As if this engine were chosen")]
Preset = Annotated[str | None, typer.Option("--preset", metavar="NAME", help="Below the file: see `bay presets`")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a dotted key, over all else")]


@app.callback()
def main() -> None:
    """Validate and show the configuration."""


@app.command()
def validate(
    file: File = None, config_file: Config = None, strict: Strict = False, json: Json = False, engine: Engine = None,
    preset: Preset = None, set_: Set = None,
) -> None:  # fmt: skip
    """Check the configuration: every problem in one line each; exit code 2 when there is one.

    Engines and models that this host lacks are warnings: the configuration may be meant for another one.
    """
    from enginebay.cli.output import emit_json, note
    from enginebay.config.load import as_error, assess

    found = assess(_one_of(file, config_file), preset=preset, flags=_flags(engine, set_), strict=strict)
    config, problems = found.config, found.problems
    warnings = [*config.warnings, *([] if problems else _missing_here(config))]
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
        raise as_error(problems)
    for warning in warnings:
        note(f"warning: {warning}")
    count = len(warnings)
    counted = f", {count} warning{'s' * (count > 1)}" if count else ""
    print(f"{config.path or 'no config file, defaults only'}: fine{counted}")


@app.command()
def show(
    file: File = None, config_file: Config = None, strict: Strict = False, json: Json = False, engine: Engine = None,
    preset: Preset = None, set_: Set = None,
) -> None:  # fmt: skip
    """Print the effective configuration, with where each value came from."""
    from enginebay.cli.output import emit_json, note
    from enginebay.config.load import load_config
    from enginebay.config.show import to_json, to_yaml

    config = load_config(_one_of(file, config_file), preset=preset, flags=_flags(engine, set_), strict=strict)
    if json:
        emit_json(to_json(config))
        return
    for warning in config.warnings:
        note(f"warning: {warning}")
    print(to_yaml(config), end="")


@app.command()
def schema(json: Json = False) -> None:
    """Print the JSON schema of the config file, for editors. It is JSON with or without --json."""
    from enginebay.cli.output import emit_json
    from enginebay.config.schema import json_schema
    from enginebay.engines.registry import specs

    emit_json(json_schema(specs()))


def _missing_here(config: model.Config) -> list[model.ConfigWarning]:
    from enginebay.cli.missing_here import missing_here

    return missing_here(config)


def _one_of(file: Path | None, config_file: Path | None) -> Path | None:
    if file is not None and config_file is not None:
        raise typer.BadParameter("name the file once, as FILE or by --config")
    return file if file is not None else config_file


def _flags(engine: str | None, assignments: list[str] | None) -> dict[str, Any]:
    from enginebay.config.sources import assignment_flags

    return {**assignment_flags(assignments or []), **({"engine": engine} if engine else {})}
