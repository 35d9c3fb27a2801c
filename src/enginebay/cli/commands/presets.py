"""`bay presets`: the settings for common purposes that `--preset NAME` stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from enginebay.config.preset_registry import Preset

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="List and explain the presets of experiments.",
)


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(help="Explain this one; without a name all are listed")] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs")] = False,
) -> None:
    """List the presets, or explain one. A config file, variables and flags win over a preset's values."""
    from enginebay.cli.output.console import emit_json, print_table
    from enginebay.config.preset_registry import PRESETS, find_preset

    if name is not None:
        found = find_preset(name)
        if json:
            emit_json(_to_json(found))
        else:
            _explain(found)
    elif json:
        emit_json([_to_json(preset) for preset in PRESETS.values()])
    else:
        rows = [
            (one.name, one.engine, one.purpose, ", ".join(_format_settings(one.settings))) for one in PRESETS.values()
        ]
        print_table(("PRESET", "ENGINE", "FOR", "SETTINGS"), rows)


def _explain(preset: Preset) -> None:
    """The same as a config file would say it, after what it is for."""
    import yaml

    print(f"{preset.name}: {preset.purpose}, on {preset.engine}\n")
    print(f"{preset.explanation}\n")
    print(yaml.safe_dump(preset.config, sort_keys=False), end="")


def _to_json(preset: Preset) -> dict[str, Any]:
    return {
        "name": preset.name,
        "engine": preset.engine,
        "purpose": preset.purpose,
        "explanation": preset.explanation,
        "config": preset.config,
    }


def _format_settings(settings: Any, prefix: str = "") -> list[str]:
    """`max_num_seqs=512`, nested names with dots."""
    found: list[str] = []
    for key, value in settings.items():
        if isinstance(value, dict):
            found += _format_settings(value, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key}={str(value).lower() if isinstance(value, bool) else value}")
    return found
