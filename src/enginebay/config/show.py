"""The effective configuration, with where each value came from. Its YAML is a config again. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml

from enginebay.config.engine_block import Block
from enginebay.config.experiment import EXPERIMENT
from enginebay.config.keys import MODEL, ROOT, SECTIONS, TRUST
from enginebay.config.model import Config, ModelConfig
from enginebay.config.tree import Entry
from enginebay.contract import EngineSpec

Tree = dict[str, Any]  # names to entries or to further trees


def effective_tree(config: Config) -> Tree:
    """Every value in force, nested as it would be written; defaults of the chosen engine included."""
    tree: Tree = {name: config.entries.get(name, Entry(setting.default)) for name, setting in ROOT.items()}
    if tree["model"].value is None:
        del tree["model"]
    _nest(tree, config.universal)
    _nest(tree, {f"sampling.{name}": entry for name, entry in config.sampling_entries.items()})
    for kind, spec in config.specs.items():
        block = config.blocks.get(kind)
        if block is None and kind != config.engine:
            continue
        defaults = _defaults(spec, config) if kind == config.engine else {}
        _nest(tree, {f"{kind}.{name}": entry for name, entry in {**defaults, **_block(block or Block())}.items()})
    for section in SECTIONS:
        _nest(tree, {f"{section}.{name}": entry for name, entry in _declared(section, config).items()})
    if config.models:
        tree["models"] = {name: _model(model) for name, model in config.models.items()}
    _nest(tree, {name: config.entries[name] for name in EXPERIMENT if name in config.entries})
    return tree


def to_yaml(config: Config) -> str:
    """For a person: YAML with a comment on each value."""
    notes = {warning.key: warning.message for warning in config.warnings}
    return "\n".join(_lines(effective_tree(config), notes, "")) + "\n"


def to_json(config: Config) -> dict[str, Any]:
    """For a program: the values, the origin of each by its dotted place, and the warnings."""
    tree = effective_tree(config)
    return {
        "file": None if config.path is None else str(config.path),
        "config": _values(tree),
        "origins": dict(_origins(tree)),
        "warnings": [{"key": one.key, "message": one.message, "where": one.where} for one in config.warnings],
    }


def _defaults(spec: EngineSpec, config: Config) -> dict[str, Entry]:
    """What the chosen engine uses where nothing is set; universal settings that are set do not count as defaults."""
    return {
        name: Entry(setting.default)
        for name, setting in spec.settings.items()
        if setting.default is not None and name not in config.universal
    }


def _declared(section: str, config: Config) -> dict[str, Entry]:
    """All that the server or the fleet goes by: each key with a value, set or not."""
    table, entries = SECTIONS[section].settings, config.section_entries.get(section, {})
    given = {name: entry for name, entry in entries.items() if entry.value is not None}
    defaults = {name: Entry(setting.default) for name, setting in table.items() if setting.default is not None}
    return {name: given.get(name) or defaults[name] for name in table if name in given or name in defaults}


def _block(block: Block) -> dict[str, Entry]:
    trust = {} if block.trust is None else {TRUST: block.trust}
    return {**block.settings, **block.sampling, **trust}


def _model(model: ModelConfig) -> Tree:
    tree: Tree = {name: model.entries[name] for name in MODEL if name in model.entries}
    _nest(tree, {f"sampling.{name}": entry for name, entry in model.sampling_entries.items()})
    if model.loras:
        written: Mapping[str, Entry] = model.entries["loras"].value
        tree["loras"] = {name: replace(written[name], value=path) for name, path in model.loras.items()}
    for kind, block in model.blocks.items():
        _nest(tree, {f"{kind}.{name}": entry for name, entry in _block(block).items()})
    return tree


def _nest(tree: Tree, entries: Mapping[str, Entry]) -> None:
    for dotted, entry in entries.items():
        *sections, name = dotted.split(".")
        current = tree
        for part in sections:
            current = current.setdefault(part, {})
        current[name] = entry


def _lines(tree: Tree, notes: Mapping[str, str], indent: str) -> Iterator[str]:
    for name, item in tree.items():
        key = f"{indent}{_flow(name)}:"
        if isinstance(item, Entry):
            note = notes.get(item.place, "")
            yield f"{key} {_flow(_listed(item.value))}  # {item.origin}{f'; {note}' if note else ''}"
        elif item:
            yield key
            yield from _lines(item, notes, f"{indent}  ")
        else:
            yield f"{key} {{}}"


def _flow(value: Any) -> str:
    """One value on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False)
    text = text.removesuffix("\n").removesuffix("\n...")
    return json.dumps(value, ensure_ascii=False) if "\n" in text else text


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _values(tree: Tree) -> dict[str, Any]:
    return {name: item.plain() if isinstance(item, Entry) else _values(item) for name, item in tree.items()}


def _origins(tree: Tree, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, item in tree.items():
        if isinstance(item, Entry):
            yield f"{prefix}{name}", str(item.origin)
        else:
            yield from _origins(item, f"{prefix}{name}.")
