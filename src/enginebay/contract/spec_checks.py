"""Finds contradictions in an engine's spec. Runs when the engine is installed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from enginebay.contract.engine_spec import EngineSpec
from enginebay.contract.sampling_parameters import parameters


def find_spec_problems(spec: EngineSpec) -> list[str]:
    """Return one line per problem."""
    undeclared = [name for name in parameters() if name not in spec.request]
    problems = [f"request declares nothing for {name}" for name in undeclared]
    problems += [f"smaller names {name}, which is not a setting" for name in spec.smaller if name not in spec.settings]
    named = [*spec.gpu_settings.count, *filter(None, [spec.gpu_settings.memory_fraction])]
    problems += [f"gpu_settings names {name}, which is not a setting" for name in named if name not in spec.settings]
    engines = [(preset.name, preset.engine) for preset in spec.presets]
    engines += [(trim.name, trim.engine) for trim in spec.trims]
    problems += [f"{name} is for the engine {kind}, not {spec.kind}" for name, kind in engines if kind != spec.kind]
    for preset in spec.presets:
        unknown = [name for name in _flatten(preset.settings) if name not in spec.settings]
        problems += [f"the preset {preset.name} sets {name}, which is not a setting" for name in unknown]
    aliases = [alias for setting in spec.settings.values() for alias in setting.aliases]
    return problems + [f"the alias {alias} is also a setting" for alias in aliases if alias in spec.settings]


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
