"""Read a configuration: find the file, merge the layers, check every key, and say all that is wrong at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from enginebay.config.canonical import canonical
from enginebay.config.chains import engine_problems
from enginebay.config.engine_block import Block, inapplicable, read_block, read_universal, walk
from enginebay.config.experiment import SWEEP, Experiment
from enginebay.config.experiment_block import read_experiment
from enginebay.config.keys import (
    AUTO,
    MODEL,
    ROOT,
    SAMPLING,
    SECTIONS,
    Vocabulary,
    checked,
    checked_in,
    checked_model,
    checked_sampling,
)
from enginebay.config.model import Config, ConfigWarning, ModelConfig
from enginebay.config.presets import Preset, find_preset
from enginebay.config.sources import (
    environment_layer,
    file_layer,
    find_file,
    flag_layer,
    point_layer,
    preset_layer,
)
from enginebay.config.sweep import sweep_problems
from enginebay.config.tree import Entry, Problem, Problems, merge
from enginebay.contract import EngineSpec, Sampling, Setting
from enginebay.errors import ConfigError, InvalidRequest


@dataclass(frozen=True, slots=True)
class Assessment:
    """A config and what is wrong with it; usable only when there are no problems."""

    config: Config
    problems: tuple[Problem, ...]


def load_config(
    path: Path | None = None,
    *,
    preset: str | None = None,
    flags: Mapping[str, Any] = MappingProxyType({}),
    environ: Mapping[str, str] = os.environ,
    strict: bool = False,
    specs: Mapping[str, EngineSpec] | None = None,
) -> Config:
    """Defaults < preset < file < environment < flags. Raises `ConfigError` with one line for each problem."""
    found = assess(path, preset=preset, flags=flags, environ=environ, strict=strict, specs=specs)
    if found.problems:
        raise as_error(found.problems)
    return found.config


def check_settings(spec: EngineSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for one run by dotted name, checked as the engine's block in a file is. Raises `ConfigError`."""
    problems = Problems()
    words = Vocabulary({spec.kind: spec})
    block = read_block(spec, flag_layer(given, problems), words, problems)
    for entry in block.sampling.values():
        problems.add(entry, "is a parameter of requests, not a setting of the engine")
    if block.trust is not None:
        problems.add(block.trust, "belongs to a model or an engine in the config file")
    if problems.found:
        raise as_error(tuple(problems.found))
    return _set_values(block.settings)


def without_effect(spec: EngineSpec, given: Mapping[str, Any]) -> list[str]:
    """Settings for one run that this engine would take without effect: one line each."""
    problems = Problems()
    block = read_block(spec, flag_layer(given, problems), Vocabulary({spec.kind: spec}), problems)
    return [str(problem) for problem in inapplicable(spec, block.settings, {})]


def as_error(problems: tuple[Problem, ...]) -> ConfigError:
    lines = [str(problem) for problem in problems]
    hint = "`bay config schema` lists every key" if any(problem.key for problem in problems) else ""
    if len(lines) == 1:
        return ConfigError(lines[0], hint, param=problems[0].key or None)
    listed = "\n".join(f"  {line}" for line in lines)
    return ConfigError(f"the configuration has {len(lines)} problems\n{listed}", hint)


def assess(
    path: Path | None = None,
    *,
    preset: str | None = None,
    flags: Mapping[str, Any] = MappingProxyType({}),
    changes: Mapping[str, Any] = MappingProxyType({}),
    environ: Mapping[str, str] = os.environ,
    strict: bool = False,
    specs: Mapping[str, EngineSpec] | None = None,
) -> Assessment:
    """As `load_config`, with the problems as data. Raises only when there is no such file or preset.

    `changes`: those of one point of a sweep, over all else.
    """
    words = Vocabulary(_installed_specs() if specs is None else specs)
    problems = Problems()
    chosen = None if preset is None else find_preset(preset)
    file = find_file(path, environ)
    root = canonical(preset_layer(chosen), words, problems)
    root = merge(root, _choosing(canonical(file_layer(file, problems), words, problems), chosen))
    for layer in (environment_layer(environ, problems), flag_layer(flags, problems), point_layer(changes, problems)):
        root = merge(root, canonical(layer, words, problems))
    config = _Builder(words, problems, file).build(root.value)
    if SWEEP in config.entries and not changes:
        problems.found += sweep_problems(config.entries[SWEEP], partial(_alone, words=words))
    found = [*_warnings(config), *_idle_preset(config, chosen)]
    if strict:
        problems.found += found
    config = replace(config, warnings=tuple(map(ConfigWarning.of, found)))
    return Assessment(config, tuple(_in_order(dict.fromkeys(problems.found))))


def _alone(changes: Mapping[str, Any], words: Vocabulary) -> list[Problem]:
    """What is wrong with them on every engine and beside any config: unknown keys, impossible values."""
    problems = Problems()
    root = canonical(point_layer(changes, problems), words, problems)
    _Builder(words, problems, None).build(root.value)
    return problems.found


def _choosing(file: Entry, preset: Preset | None) -> Entry:
    """The file's layer; an `engine: auto` in it leaves the choice open, so that a preset makes it."""
    if preset is None or file.value.get("engine", Entry(None)).value != AUTO:
        return file
    return replace(file, value={name: entry for name, entry in file.value.items() if name != "engine"})


def _idle_preset(config: Config, preset: Preset | None) -> list[Problem]:
    """A preset is for one engine: said when another one is chosen."""
    if preset is None or preset.engine in (config.engine_for(config.model), *config.study_engines()):
        return []
    engine = config.engine_entry(config.model)
    reason = f"{preset.name} counts on {preset.engine} alone, and {engine.value} is chosen"
    return [Problem("preset", f"{reason}; instead: a preset of that engine, or none", engine.origin)]


def _installed_specs() -> Mapping[str, EngineSpec]:
    from enginebay.engines.registry import specs

    return specs()


class _Builder:
    """Checks the merged tree and makes a Config of it."""

    def __init__(self, words: Vocabulary, problems: Problems, file: Path | None) -> None:
        self.words = words
        self.problems = problems
        self.file = file

    def build(self, root: Mapping[str, Entry]) -> Config:
        entries = self.plain_keys(root, ROOT, lambda name, entry: checked(ROOT[name], entry, self.problems))
        given = root.get("experiment", Entry({}))
        experiment = read_experiment(given, self.words, self.problems, self.beside_file)
        sampling = self.sampling(root.get("sampling", Entry({})))
        models = {name: self.model(name, entry) for name, entry in root.get("models", Entry({})).children()}
        sections = {name: self.section(name, root.get(name, Entry({}))) for name in SECTIONS}
        blocks = self.blocks(root)
        universal = read_universal(root, self.words, self.problems)
        values = {name: entry.value for name, entry in entries.items() if entry.value is not None}
        config = Config(
            **values,
            models=MappingProxyType(models),
            sampling=MappingProxyType(_set_values(sampling)),
            experiment=Experiment.of(experiment),
            **{name: section.build(sections[name]) for name, section in SECTIONS.items()},
            path=self.file,
            specs=MappingProxyType(dict(self.words.specs)),
            entries=MappingProxyType({**entries, **experiment}),
            universal=MappingProxyType(universal),
            section_entries=MappingProxyType(sections),
            sampling_entries=MappingProxyType(sampling),
            blocks=MappingProxyType(blocks),
        )
        self.check_universal(config)
        self.problems.found += engine_problems(config)
        return config

    def plain_keys(
        self, section: Mapping[str, Entry], table: Iterable[str], check: Callable[[str, Entry], Entry | None]
    ) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for name in table:
            value = check(name, section[name]) if name in section else None
            if value is not None:
                found[name] = self.engine_name(value) if name == "engine" else value
        return found

    def engine_name(self, entry: Entry) -> Entry:
        """The kind behind a name or alias; reported when there is none."""
        if entry.value in (None, AUTO):
            return entry
        return replace(entry, value=self.words.known_kind(entry.value, entry, self.problems, AUTO))

    def section(self, section: str, given: Entry) -> dict[str, Entry]:
        """The keys of `server:` or `fleet:` by dotted name."""
        declared, found = SECTIONS[section], dict[str, Entry]()

        def take(name: str, entry: Entry) -> bool:
            if name not in declared.settings:
                return False
            value = checked_in(declared, name, entry, self.problems)
            if value is not None:
                is_path = name in declared.paths and value.value is not None
                found[name] = replace(value, value=self.beside_file(value.value, value)) if is_path else value
            return True

        walk(given, "", list(declared.settings), take, self.words, self.problems)
        if "standby" in found:
            found["standby"] = self.words.known_kinds(found["standby"], self.problems)
        return found

    def sampling(self, section: Entry) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for name, entry in section.children():
            if name not in SAMPLING:
                self.words.unknown(self.problems, entry, SAMPLING)
                continue
            value = checked_sampling(name, entry, self.problems)
            found.update({name: value} if value else {})
        self.check_together(found, section)
        return found

    def check_together(self, found: Mapping[str, Entry], section: Entry) -> None:
        """Rules over several parameters are the contract's own, so that a config default cannot be a bad request."""
        try:
            Sampling(**_set_values(found))
        except InvalidRequest as error:
            self.problems.add(found.get(error.param or "", section), error.message)

    def blocks(self, section: Mapping[str, Entry]) -> dict[str, Block]:
        return {
            kind: read_block(spec, section[kind], self.words, self.problems)
            for kind, spec in self.words.specs.items()
            if kind in section
        }

    def model(self, name: str, entry: Entry) -> ModelConfig:
        keys: dict[str, Entry] = dict(entry.children())
        plain = self.plain_keys(keys, MODEL, lambda name, found: checked_model(name, found, self.problems))
        if "fallback" in plain:
            plain["fallback"] = self.words.known_kinds(plain["fallback"], self.problems)
        if plain.get("source") is not None and plain["source"].value is not None:
            plain["source"] = replace(plain["source"], value=self.source(plain["source"]))
        sampling = self.sampling(keys.get("sampling", Entry({})))
        return ModelConfig(
            name,
            **{key: one.value for key, one in plain.items() if one.value is not None},
            sampling=MappingProxyType(_set_values(sampling)),
            loras=MappingProxyType(self.loras(keys.get("loras", Entry({})))),
            entries=MappingProxyType({key: one for key, one in keys.items() if key not in MODEL} | plain),
            sampling_entries=MappingProxyType(sampling),
            blocks=MappingProxyType(self.blocks(keys)),
        )

    def loras(self, section: Entry) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, entry in section.children():
            value = checked(Setting("str", ""), entry, self.problems)
            if value is not None and not value.value:
                self.problems.add(entry, "expected the adapter's path")
            elif value is not None:
                found[str(name)] = self.beside_file(value.value, value)
        return found

    def source(self, entry: Entry) -> str:
        scheme, colon, rest = str(entry.value).partition(":")
        return f"file:{self.beside_file(rest, entry)}" if colon and scheme == "file" else str(entry.value)

    def beside_file(self, path: str, entry: Entry) -> str:
        """A relative path in a file means beside that file; in a variable or flag, the current directory."""
        in_file = entry.origin.source in ("file", "sweep")
        base = self.file.absolute().parent if self.file is not None and in_file else Path.cwd()
        return os.path.normpath(base / Path(path).expanduser())

    def check_universal(self, config: Config) -> None:
        """Top-level settings must fit the engines this config chooses by name."""
        for model in (None, *config.models):
            kind = config.engine_for(model)
            if kind in config.specs:
                self.problems.found += config.setting_entries(kind, model)[1]


def _chosen(config: Config) -> list[str]:
    """Engines that models of this config run on, as far as it says."""
    asked = [config.engine_for(), *(config.engine_for(name) for name in config.models)]
    return [kind for kind in dict.fromkeys(asked) if kind != AUTO and kind in config.specs]


def _warnings(config: Config) -> list[Problem]:
    """Each key without effect once: in its own engine's block always, elsewhere on the engines that are chosen."""
    found: list[Problem] = []
    for blocks in (config.blocks, *(model.blocks for model in config.models.values())):
        for kind, block in blocks.items():
            found += inapplicable(config.specs[kind], block.settings, block.sampling)
    for kind in _chosen(config):
        found += inapplicable(config.specs[kind], config.universal, config.sampling_entries)
    for name, model in config.models.items():
        kind = config.engine_for(name)
        if kind in config.specs:
            found += inapplicable(config.specs[kind], {}, model.sampling_entries)
    once: dict[str, Problem] = {}
    for problem in found:
        once.setdefault(problem.key, problem)
    return _in_order(once.values())


def _in_order(problems: Iterable[Problem]) -> list[Problem]:
    """As the user will work through them: the file from top to bottom, then variables, then flags."""
    return sorted(problems, key=lambda one: (one.origin.rank, one.origin.line or 0))


def _set_values(entries: Mapping[str, Entry]) -> dict[str, Any]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}
