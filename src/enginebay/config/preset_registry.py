"""The presets of all engines by name. The config file overrides a preset."""

from __future__ import annotations

from enginebay.contract import Preset
from enginebay.engines import registry
from enginebay.errors import ConfigError
from enginebay.util.text_format import find_nearest


def load_presets() -> dict[str, Preset]:
    """Return every preset by name. Built-in ones come first: a third-party engine cannot replace them."""
    presets: dict[str, Preset] = {}
    for spec in registry.load_specs().values():
        for preset in spec.presets:
            presets.setdefault(preset.name, preset)
    return presets


def find_preset(name: str) -> Preset:
    """Return the preset of this name. Raises `ConfigError`."""
    presets = load_presets()
    if name in presets:
        return presets[name]
    near = find_nearest(name, presets)
    hint = f"did you mean {near[0]}?" if near else f"available: {', '.join(presets)}"
    raise ConfigError(f"unknown preset {name!r}", hint, param="preset")
