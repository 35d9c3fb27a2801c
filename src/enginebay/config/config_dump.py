"""Renders the effective configuration with the origin of each value. The YAML is a valid config. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml

from enginebay.config.entries.config_entry import ConfigEntry, overlay, pick_stronger
from enginebay.config.resolved_config import Config, ModelConfig
from enginebay.config.sections.config_keys import MODEL_KEYS, ROOT_KEYS, SECTIONS, TRUST_KEY
from enginebay.config.sections.engine_block import EngineBlock
from enginebay.config.sections.experiment_section import EXPERIMENT_KEYS
from enginebay.contract import EngineSpec

EntryTree = dict[str, Any]  # names to entries or to further trees


def build_effective_tree(config: Config) -> EntryTree:
    """Build the tree of effective values, including defaults of the chosen engine."""
    tree: EntryTree = {
        name: config.entries.get(name, ConfigEntry(setting.default)) for name, setting in ROOT_KEYS.items()
    }
    if tree["model"].value is None:
        del tree["model"]
    _nest(tree, config.universal)
    _nest(tree, {f"sampling.{name}": entry for name, entry in config.sampling_entries.items()})
    for kind, spec in config.specs.items():
        block = config.blocks.get(kind)
        if block is None and kind != config.engine:
            continue
        defaults = _collect_defaults(spec, config) if kind == config.engine else {}
        _nest(
            tree,
            {f"{kind}.{name}": entry for name, entry in {**defaults, **_flatten_block(block or EngineBlock())}.items()},
        )
    for section in SECTIONS:
        _nest(tree, {f"{section}.{name}": entry for name, entry in _collect_section(section, config).items()})
    if config.models:
        tree["models"] = {name: _build_model_tree(config, model) for name, model in config.models.items()}
    _nest(tree, {name: config.entries[name] for name in EXPERIMENT_KEYS if name in config.entries})
    return tree


def to_yaml(config: Config) -> str:
    """Render YAML with the origin of each value as a comment."""
    notes = {warning.key: warning.message for warning in config.warnings}
    untrusted = () if config.trusted else (f"# {config.path} is not trusted; see `bay config trust --help`",)
    return "\n".join((*untrusted, *_format_lines(build_effective_tree(config), notes, ""))) + "\n"


def to_json(config: Config) -> dict[str, Any]:
    """Return the values, their origins by dotted key, and the warnings."""
    tree = build_effective_tree(config)
    return {
        "file": None if config.path is None else str(config.path),
        "trusted": config.trusted,
        "config": _to_plain_values(tree),
        "origins": dict(_iter_origins(tree)),
        "warnings": [
            {"key": warning.key, "message": warning.message, "where": warning.where} for warning in config.warnings
        ],
    }


def _collect_defaults(spec: EngineSpec, config: Config) -> dict[str, ConfigEntry]:
    """Return the defaults of the chosen engine, except for universal settings that are set."""
    return {
        name: ConfigEntry(setting.default)
        for name, setting in spec.settings.items()
        if setting.default is not None and name not in config.universal
    }


def _collect_section(section: str, config: Config) -> dict[str, ConfigEntry]:
    """Return every key of `server:` or `fleet:` that has a value, set or default."""
    table, entries = SECTIONS[section].settings, config.section_entries.get(section, {})
    explicit = {name: entry for name, entry in entries.items() if entry.value is not None}
    defaults = {name: ConfigEntry(setting.default) for name, setting in table.items() if setting.default is not None}
    return {name: explicit.get(name) or defaults[name] for name in table if name in explicit or name in defaults}


def _flatten_block(block: EngineBlock) -> dict[str, ConfigEntry]:
    trust = {} if block.trust is None else {TRUST_KEY: block.trust}
    return {**block.settings, **block.sampling, **trust}


def _build_model_tree(config: Config, model: ModelConfig) -> EntryTree:
    """Build the tree of a model, without the values that a stronger source overrides for every model."""
    server, fleet = config.section_entries.get("server", {}), config.section_entries.get("fleet", {})
    sources = {"engine": config.entries, "resume": server, "idle_s": fleet, "sleep": fleet}
    general = {name: source[name] for name, source in sources.items() if name in source}
    general |= config.find_general_context_length(model.name)
    own = {name: model.entries[name] for name in MODEL_KEYS if name in model.entries}
    tree: EntryTree = _drop_overridden(own, general)
    _nest(tree, _prefix("sampling", _drop_overridden(model.sampling_entries, config.sampling_entries)))
    if model.loras:
        written: Mapping[str, ConfigEntry] = model.entries["loras"].value
        tree["loras"] = {name: replace(written[name], value=path) for name, path in model.loras.items()}
    for kind, block in model.blocks.items():
        shared = _flatten_block(config.blocks.get(kind, EngineBlock()))
        stronger = overlay(config.universal, config.sampling_entries, model.sampling_entries, shared)
        _nest(tree, _prefix(kind, _drop_overridden(_flatten_block(block), stronger)))
    return tree


def _drop_overridden(own: Mapping[str, ConfigEntry], general: Mapping[str, ConfigEntry]) -> dict[str, ConfigEntry]:
    return {name: entry for name, entry in own.items() if pick_stronger(general.get(name), entry) is entry}


def _prefix(section: str, entries: Mapping[str, ConfigEntry]) -> dict[str, ConfigEntry]:
    return {f"{section}.{name}": entry for name, entry in entries.items()}


def _nest(tree: EntryTree, entries: Mapping[str, ConfigEntry]) -> None:
    for dotted, entry in entries.items():
        *sections, name = dotted.split(".")
        current = tree
        for part in sections:
            current = current.setdefault(part, {})
        current[name] = entry


def _format_lines(tree: EntryTree, notes: Mapping[str, str], indent: str) -> Iterator[str]:
    for name, item in tree.items():
        key = f"{indent}{_format_flow(name)}:"
        if isinstance(item, ConfigEntry):
            note = notes.get(item.key_path, "")
            yield f"{key} {_format_flow(_to_list(item.value))}  # {item.origin}{f'; {note}' if note else ''}"
        elif item:
            yield key
            yield from _format_lines(item, notes, f"{indent}  ")
        else:
            yield f"{key} {{}}"


def _format_flow(value: Any) -> str:
    """Format a value on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False)
    text = text.removesuffix("\n").removesuffix("\n...")
    return json.dumps(value, ensure_ascii=False) if "\n" in text else text


def _to_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _to_plain_values(tree: EntryTree) -> dict[str, Any]:
    return {
        name: item.to_plain() if isinstance(item, ConfigEntry) else _to_plain_values(item)
        for name, item in tree.items()
    }


def _iter_origins(tree: EntryTree, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, item in tree.items():
        if isinstance(item, ConfigEntry):
            yield f"{prefix}{name}", str(item.origin)
        else:
            yield from _iter_origins(item, f"{prefix}{name}.")
