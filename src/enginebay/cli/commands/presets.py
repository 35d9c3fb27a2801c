"""`bay presets`: list and explain the presets of `--preset NAME`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.options.command_app import create_app

if TYPE_CHECKING:
    from enginebay.contract import Preset

app = create_app(help="List and explain presets: settings for common purposes.")


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(help="Preset to explain (default: list all)")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output")] = False,
) -> None:
    """List the presets, or explain one. The config file, environment and flags override a preset."""
    from enginebay.cli.output.console import emit_json, print_table
    from enginebay.config.preset_registry import find_preset, load_presets

    if name is not None:
        preset = find_preset(name)
        if json:
            emit_json(_to_json(preset))
        else:
            _explain(preset)
    elif json:
        emit_json([_to_json(preset) for preset in load_presets().values()])
    else:
        rows = [
            (preset.name, preset.engine, preset.purpose, ", ".join(_format_settings(preset.settings)))
            for preset in load_presets().values()
        ]
        print_table(("preset", "engine", "for", "settings"), rows)


def _explain(preset: Preset) -> None:
    """Print the purpose, the explanation and the settings as a config file."""
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
    """Format settings as `max_num_seqs=512`, nested names with dots."""
    pairs: list[str] = []
    for key, value in settings.items():
        if isinstance(value, dict):
            pairs += _format_settings(value, f"{prefix}{key}.")
        else:
            pairs.append(f"{prefix}{key}={str(value).lower() if isinstance(value, bool) else value}")
    return pairs
