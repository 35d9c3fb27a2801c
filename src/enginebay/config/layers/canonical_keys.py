"""Canonicalizes the keys of one layer: flattens `inference:`, resolves aliases, moves relocated keys.

Runs on each layer before merging, so that `backend` in a file and `engine` on the command line are one key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from enginebay.config.entries.config_entry import ConfigEntry, ProblemCollector, as_section
from enginebay.config.entries.key_aliases import rename_aliases
from enginebay.config.entries.value_coercion import build_example, quote_value
from enginebay.config.sections.config_keys import (
    MODEL_KEYS,
    ROOT_ALIASES,
    ROOT_KEYS,
    SAMPLING_ALIASES,
    SAMPLING_KEYS,
    SECTIONS,
    UNIVERSAL_KEYS,
    ConfigKeys,
)
from enginebay.config.sections.experiment_section import EXPERIMENT_KEYS
from enginebay.contract import Setting

_EXPERIMENT_TOP_KEYS = tuple(dict.fromkeys(name.split(".")[0] for name in EXPERIMENT_KEYS))


def canonicalize(layer: ConfigEntry, known_keys: ConfigKeys, problems: ProblemCollector) -> ConfigEntry:
    """Return the layer with canonical keys only. Reports and drops unknown keys."""
    root: dict[str, ConfigEntry] = {}
    for key, entry in _flatten_inference(layer, problems):
        _assign_key(root, key, entry, known_keys, problems)
    return replace(layer, value=root)


def _flatten_inference(layer: ConfigEntry, problems: ProblemCollector) -> list[tuple[str, ConfigEntry]]:
    """List top-level keys, including those under `inference:`."""
    pairs: list[tuple[str, ConfigEntry]] = []
    for key, entry in layer.children():
        if key != "inference":
            pairs.append((str(key), entry))
            continue
        section = _check_section(entry, problems, "{engine: auto}")
        pairs += [(str(name), child) for name, child in section.children()]
    return pairs


def _assign_key(
    root: dict[str, ConfigEntry], key: str, entry: ConfigEntry, known_keys: ConfigKeys, problems: ProblemCollector
) -> None:
    kind = known_keys.resolve_kind(key)
    if key in ROOT_KEYS or key in ROOT_ALIASES:
        _add_entry(root, ROOT_ALIASES.get(key, key), entry, problems)
    elif key in SAMPLING_ALIASES:
        _add_to_section(root, "sampling", SAMPLING_ALIASES[key], entry, problems)
    elif key in ("sampling", "decoder"):
        for name, child in _read_section(entry, SAMPLING_KEYS, problems).children():
            _add_to_section(root, "sampling", str(name), child, problems)
    elif key in _EXPERIMENT_TOP_KEYS:
        _add_to_section(root, "experiment", key, entry, problems)
    elif key in SECTIONS:
        _add_entry(root, key, _read_section(entry, SECTIONS[key].settings, problems), problems)
    elif key == "models":
        _add_entry(root, "models", _canonicalize_models(entry, known_keys, problems), problems)
    elif kind is not None:
        _add_entry(root, kind, _read_section(entry, known_keys.specs[kind].settings, problems), problems)
    elif key in UNIVERSAL_KEYS:
        _add_entry(root, key, entry, problems)
    else:
        known_keys.report_unknown_key(problems, entry, known_keys.list_top_level_keys())


def _canonicalize_models(entry: ConfigEntry, known_keys: ConfigKeys, problems: ProblemCollector) -> ConfigEntry:
    models: dict[Any, ConfigEntry] = {}
    for name, model in _check_section(entry, problems, "{NAME: {source: hf:ORG/NAME}}").children():
        if isinstance(model.value, str):
            models[str(name)] = replace(model, value={"source": model})
            continue
        keys: dict[str, ConfigEntry] = {}
        section = _check_section(model, problems, "{source: hf:ORG/NAME}")
        for key, child in rename_aliases(MODEL_KEYS, section, problems).children():
            kind = known_keys.resolve_kind(str(key))
            if key in MODEL_KEYS:
                _add_entry(keys, str(key), child, problems)
            elif key == "loras":
                _add_entry(keys, "loras", _check_section(child, problems, "{NAME: PATH}"), problems)
            elif key == "sampling" or kind is not None:
                settings = SAMPLING_KEYS if kind is None else known_keys.specs[kind].settings
                _add_entry(keys, kind or "sampling", _read_section(child, settings, problems), problems)
            else:
                known_keys.report_unknown_key(
                    problems, child, [*MODEL_KEYS, "sampling", "loras", *known_keys.kinds_by_name]
                )
        models[str(name)] = replace(model, value=keys)
    return replace(entry, value=models)


def _read_section(entry: ConfigEntry, settings: Mapping[str, Setting], problems: ProblemCollector) -> ConfigEntry:
    """Return the section with declared names; empty, with a problem, if it is something else."""
    return rename_aliases(settings, _check_section(entry, problems, settings), problems)


def _check_section(entry: ConfigEntry, problems: ProblemCollector, example: str | Mapping[str, Setting]) -> ConfigEntry:
    """Return the section, null as an empty one. `example`: its value in a message, or the settings to build one from."""
    section = as_section(entry)
    if section.is_section:
        return section
    name, shown = entry.key_path.rpartition(".")[2], example if isinstance(example, str) else build_example(example)
    problems.add(entry, f"expected a mapping, got {quote_value(entry.value)}; for example: {name}: {shown}")
    return replace(entry, value={})


def _add_entry(target: dict[str, ConfigEntry], name: str, entry: ConfigEntry, problems: ProblemCollector) -> None:
    present = target.get(name)
    if present is None:
        target[name] = entry
    else:
        problems.add(entry, f"duplicates {present.key_path} ({present.origin}); remove one of them")


def _add_to_section(
    root: dict[str, ConfigEntry], group: str, name: str, entry: ConfigEntry, problems: ProblemCollector
) -> None:
    """Add an entry to a section whose keys may come from several spellings."""
    section = root.setdefault(group, ConfigEntry({}, entry.origin, group))
    _add_entry(section.value, name, entry, problems)
