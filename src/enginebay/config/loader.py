"""Read a configuration: find the file, merge the layers, check every key, and say all that is wrong at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from enginebay.config.entries.config_entry import ConfigEntry, ConfigProblem, ProblemCollector, merge
from enginebay.config.layers.canonical_keys import canonicalize
from enginebay.config.layers.layer_sources import (
    build_flag_layer,
    build_preset_layer,
    build_sweep_layer,
    find_config_file,
    read_environment_layer,
    read_file_layer,
)
from enginebay.config.preset_registry import Preset, find_preset
from enginebay.config.resolved_config import Config, ConfigWarning, ModelConfig
from enginebay.config.sections.config_keys import (
    AUTO,
    MODEL_KEYS,
    ROOT_KEYS,
    SAMPLING_KEYS,
    SECTIONS,
    ConfigKeys,
    check_entry,
    check_model_entry,
    check_sampling_entry,
    check_section_entry,
)
from enginebay.config.sections.engine_block import (
    EngineBlock,
    find_inapplicable,
    read_engine_block,
    read_universal_settings,
    walk_section,
)
from enginebay.config.sections.experiment_reader import read_experiment
from enginebay.config.sections.experiment_section import SWEEP_KEY, ExperimentConfig
from enginebay.config.sections.sweep_grid import find_sweep_problems
from enginebay.contract import EngineSpec, Sampling, Setting
from enginebay.errors import ConfigError, InvalidRequest


def find_engine_problems(config: Config) -> list[ConfigProblem]:
    """Chains that name an engine again, and prompts that would leave this host though nobody said they may."""
    named = dict.fromkeys([*config.models, *([config.model] if config.model else [])])
    return [
        problem
        for name in named
        for problem in (*_find_repeated_engines(config, name), *_find_forbidden_remotes(config, name))
    ]


def _get_fallback_entry(config: Config, model: str) -> ConfigEntry:
    found = config.models.get(model)
    return ConfigEntry(()) if found is None else found.entries.get("fallback", ConfigEntry(()))


def _find_repeated_engines(config: Config, model: str) -> Iterator[ConfigProblem]:
    """A preset, flag or variable may well choose an engine of the chain; `Config.fallback_for` leaves it out then."""
    engine, chain = config.engine_entry(model), _get_fallback_entry(config, model)
    chosen_apart = engine.origin.source == "preset" or engine.origin.rank > chain.origin.rank
    if engine.value in (chain.value or ()) and not chosen_apart:
        yield ConfigProblem(chain.key_path, f"names {engine.value}, the engine it is to replace", chain.origin)


def _find_forbidden_remotes(config: Config, model: str) -> Iterator[ConfigProblem]:
    engine, chain = config.engine_entry(model), _get_fallback_entry(config, model)
    for entry, kinds in ((engine, [engine.value]), (chain, chain.value or ())):
        for kind in kinds:
            reason = config.explain_leaving_host(kind, model)
            if reason:
                yield ConfigProblem(entry.key_path, reason, entry.origin)


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """A config and what is wrong with it; usable only when there are no problems."""

    config: Config
    problems: tuple[ConfigProblem, ...]


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
    found = validate_config(path, preset=preset, flags=flags, environ=environ, strict=strict, specs=specs)
    if found.problems:
        raise to_config_error(found.problems)
    return found.config


def check_settings(spec: EngineSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for one run by dotted name, checked as the engine's block in a file is. Raises `ConfigError`."""
    problems = ProblemCollector()
    words = ConfigKeys({spec.kind: spec})
    block = read_engine_block(spec, build_flag_layer(given, problems), words, problems)
    for entry in block.sampling.values():
        problems.add(entry, "is a parameter of requests, not a setting of the engine")
    if block.trust is not None:
        problems.add(block.trust, "belongs to a model or an engine in the config file")
    if problems.items:
        raise to_config_error(tuple(problems.items))
    return _collect_set_values(block.settings)


def list_ineffective_settings(spec: EngineSpec, given: Mapping[str, Any]) -> list[str]:
    """Settings for one run that this engine would take without effect: one line each."""
    problems = ProblemCollector()
    block = read_engine_block(spec, build_flag_layer(given, problems), ConfigKeys({spec.kind: spec}), problems)
    return [str(problem) for problem in find_inapplicable(spec, block.settings, {})]


def to_config_error(problems: tuple[ConfigProblem, ...]) -> ConfigError:
    lines = [str(problem) for problem in problems]
    hint = "`bay config schema` lists every key" if any(problem.key for problem in problems) else ""
    if len(lines) == 1:
        return ConfigError(lines[0], hint, param=problems[0].key or None)
    listed = "\n".join(f"  {line}" for line in lines)
    return ConfigError(f"the configuration has {len(lines)} problems\n{listed}", hint)


def validate_config(
    path: Path | None = None,
    *,
    preset: str | None = None,
    flags: Mapping[str, Any] = MappingProxyType({}),
    changes: Mapping[str, Any] = MappingProxyType({}),
    environ: Mapping[str, str] = os.environ,
    strict: bool = False,
    specs: Mapping[str, EngineSpec] | None = None,
) -> ValidationResult:
    """As `load_config`, with the problems as data. Raises only when there is no such file or preset.

    `changes`: those of one point of a sweep, over all else.
    """
    words = ConfigKeys(_installed_specs() if specs is None else specs)
    problems = ProblemCollector()
    chosen = None if preset is None else find_preset(preset)
    file = find_config_file(path, environ)
    root = canonicalize(build_preset_layer(chosen), words, problems)
    root = merge(root, _drop_auto_engine(canonicalize(read_file_layer(file, problems), words, problems), chosen))
    for layer in (
        read_environment_layer(environ, problems),
        build_flag_layer(flags, problems),
        build_sweep_layer(changes, problems),
    ):
        root = merge(root, canonicalize(layer, words, problems))
    config = _ConfigBuilder(words, problems, file).build(root.value)
    if SWEEP_KEY in config.entries and not changes:
        problems.items += find_sweep_problems(config.entries[SWEEP_KEY], partial(_validate_changes, known_keys=words))
    found = [*_collect_warnings(config), *_find_unused_preset(config, chosen)]
    if strict:
        problems.items += found
    config = replace(config, warnings=tuple(map(ConfigWarning.from_problem, found)))
    return ValidationResult(config, tuple(_sort_problems(dict.fromkeys(problems.items))))


def _validate_changes(changes: Mapping[str, Any], known_keys: ConfigKeys) -> list[ConfigProblem]:
    """What is wrong with them on every engine and beside any config: unknown keys, impossible values."""
    problems = ProblemCollector()
    root = canonicalize(build_sweep_layer(changes, problems), known_keys, problems)
    _ConfigBuilder(known_keys, problems, None).build(root.value)
    return problems.items


def _drop_auto_engine(file: ConfigEntry, preset: Preset | None) -> ConfigEntry:
    """The file's layer; an `engine: auto` in it leaves the choice open, so that a preset makes it."""
    if preset is None or file.value.get("engine", ConfigEntry(None)).value != AUTO:
        return file
    return replace(file, value={name: entry for name, entry in file.value.items() if name != "engine"})


def _find_unused_preset(config: Config, preset: Preset | None) -> list[ConfigProblem]:
    """A preset is for one engine: said when another one is chosen."""
    if preset is None or preset.engine in (config.engine_for(config.model), *config.list_study_engines()):
        return []
    engine = config.engine_entry(config.model)
    reason = f"{preset.name} counts on {preset.engine} alone, and {engine.value} is chosen"
    return [ConfigProblem("preset", f"{reason}; instead: a preset of that engine, or none", engine.origin)]


def _installed_specs() -> Mapping[str, EngineSpec]:
    from enginebay.engines.registry import load_specs

    return load_specs()


class _ConfigBuilder:
    """Checks the merged tree and makes a Config of it."""

    def __init__(self, known_keys: ConfigKeys, problems: ProblemCollector, file: Path | None) -> None:
        self.known_keys = known_keys
        self.problems = problems
        self.file = file

    def build(self, root: Mapping[str, ConfigEntry]) -> Config:
        entries = self.check_keys(
            root, ROOT_KEYS, lambda name, entry: check_entry(ROOT_KEYS[name], entry, self.problems)
        )
        given = root.get("experiment", ConfigEntry({}))
        experiment = read_experiment(given, self.known_keys, self.problems, self.resolve_path)
        sampling = self.build_sampling(root.get("sampling", ConfigEntry({})))
        models = {name: self.build_model(name, entry) for name, entry in root.get("models", ConfigEntry({})).children()}
        sections = {name: self.build_section(name, root.get(name, ConfigEntry({}))) for name in SECTIONS}
        blocks = self.build_engine_blocks(root)
        universal = read_universal_settings(root, self.known_keys, self.problems)
        values = {name: entry.value for name, entry in entries.items() if entry.value is not None}
        config = Config(
            **values,
            models=MappingProxyType(models),
            sampling=MappingProxyType(_collect_set_values(sampling)),
            experiment=ExperimentConfig.from_entries(experiment),
            **{name: section.build(sections[name]) for name, section in SECTIONS.items()},
            path=self.file,
            specs=MappingProxyType(dict(self.known_keys.specs)),
            entries=MappingProxyType({**entries, **experiment}),
            universal=MappingProxyType(universal),
            section_entries=MappingProxyType(sections),
            sampling_entries=MappingProxyType(sampling),
            blocks=MappingProxyType(blocks),
        )
        self.check_universal_settings(config)
        self.problems.items += find_engine_problems(config)
        return config

    def check_keys(
        self,
        section: Mapping[str, ConfigEntry],
        table: Iterable[str],
        check: Callable[[str, ConfigEntry], ConfigEntry | None],
    ) -> dict[str, ConfigEntry]:
        found: dict[str, ConfigEntry] = {}
        for name in table:
            value = check(name, section[name]) if name in section else None
            if value is not None:
                found[name] = self.resolve_engine(value) if name == "engine" else value
        return found

    def resolve_engine(self, entry: ConfigEntry) -> ConfigEntry:
        """The kind behind a name or alias; reported when there is none."""
        if entry.value in (None, AUTO):
            return entry
        return replace(entry, value=self.known_keys.require_kind(entry.value, entry, self.problems, AUTO))

    def build_section(self, section: str, given: ConfigEntry) -> dict[str, ConfigEntry]:
        """The keys of `server:` or `fleet:` by dotted name."""
        declared, found = SECTIONS[section], dict[str, ConfigEntry]()

        def take(name: str, entry: ConfigEntry) -> bool:
            if name not in declared.settings:
                return False
            value = check_section_entry(declared, name, entry, self.problems)
            if value is not None:
                is_path = name in declared.path_keys and value.value is not None
                found[name] = replace(value, value=self.resolve_path(value.value, value)) if is_path else value
            return True

        walk_section(given, "", list(declared.settings), take, self.known_keys, self.problems)
        if "standby" in found:
            found["standby"] = self.known_keys.require_kinds(found["standby"], self.problems)
        return found

    def build_sampling(self, section: ConfigEntry) -> dict[str, ConfigEntry]:
        found: dict[str, ConfigEntry] = {}
        for name, entry in section.children():
            if name not in SAMPLING_KEYS:
                self.known_keys.report_unknown_key(self.problems, entry, SAMPLING_KEYS)
                continue
            value = check_sampling_entry(name, entry, self.problems)
            found.update({name: value} if value else {})
        self.check_sampling_rules(found, section)
        return found

    def check_sampling_rules(self, found: Mapping[str, ConfigEntry], section: ConfigEntry) -> None:
        """Rules over several parameters are the contract's own, so that a config default cannot be a bad request."""
        try:
            Sampling(**_collect_set_values(found))
        except InvalidRequest as error:
            self.problems.add(found.get(error.param or "", section), error.message)

    def build_engine_blocks(self, section: Mapping[str, ConfigEntry]) -> dict[str, EngineBlock]:
        return {
            kind: read_engine_block(spec, section[kind], self.known_keys, self.problems)
            for kind, spec in self.known_keys.specs.items()
            if kind in section
        }

    def build_model(self, name: str, entry: ConfigEntry) -> ModelConfig:
        keys: dict[str, ConfigEntry] = dict(entry.children())
        plain = self.check_keys(keys, MODEL_KEYS, lambda name, found: check_model_entry(name, found, self.problems))
        if "fallback" in plain:
            plain["fallback"] = self.known_keys.require_kinds(plain["fallback"], self.problems)
        if plain.get("source") is not None and plain["source"].value is not None:
            plain["source"] = replace(plain["source"], value=self.resolve_source(plain["source"]))
        sampling = self.build_sampling(keys.get("sampling", ConfigEntry({})))
        return ModelConfig(
            name,
            **{key: one.value for key, one in plain.items() if one.value is not None},
            sampling=MappingProxyType(_collect_set_values(sampling)),
            loras=MappingProxyType(self.build_loras(keys.get("loras", ConfigEntry({})))),
            entries=MappingProxyType({key: one for key, one in keys.items() if key not in MODEL_KEYS} | plain),
            sampling_entries=MappingProxyType(sampling),
            blocks=MappingProxyType(self.build_engine_blocks(keys)),
        )

    def build_loras(self, section: ConfigEntry) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, entry in section.children():
            value = check_entry(Setting("str", ""), entry, self.problems)
            if value is not None and not value.value:
                self.problems.add(entry, "expected the adapter's path")
            elif value is not None:
                found[str(name)] = self.resolve_path(value.value, value)
        return found

    def resolve_source(self, entry: ConfigEntry) -> str:
        scheme, colon, rest = str(entry.value).partition(":")
        return f"file:{self.resolve_path(rest, entry)}" if colon and scheme == "file" else str(entry.value)

    def resolve_path(self, path: str, entry: ConfigEntry) -> str:
        """A relative path in a file means beside that file; in a variable or flag, the current directory."""
        in_file = entry.origin.source in ("file", "sweep")
        base = self.file.absolute().parent if self.file is not None and in_file else Path.cwd()
        return os.path.normpath(base / Path(path).expanduser())

    def check_universal_settings(self, config: Config) -> None:
        """Top-level settings must fit the engines this config chooses by name."""
        for model in (None, *config.models):
            kind = config.engine_for(model)
            if kind in config.specs:
                self.problems.items += config.setting_entries_for(kind, model)[1]


def _list_chosen_engines(config: Config) -> list[str]:
    """Engines that models of this config run on, as far as it says."""
    asked = [config.engine_for(), *(config.engine_for(name) for name in config.models)]
    return [kind for kind in dict.fromkeys(asked) if kind != AUTO and kind in config.specs]


def _collect_warnings(config: Config) -> list[ConfigProblem]:
    """Each key without effect once: in its own engine's block always, elsewhere on the engines that are chosen."""
    found: list[ConfigProblem] = []
    for blocks in (config.blocks, *(model.blocks for model in config.models.values())):
        for kind, block in blocks.items():
            found += find_inapplicable(config.specs[kind], block.settings, block.sampling)
    for kind in _list_chosen_engines(config):
        found += find_inapplicable(config.specs[kind], config.universal, config.sampling_entries)
    for name, model in config.models.items():
        kind = config.engine_for(name)
        if kind in config.specs:
            found += find_inapplicable(config.specs[kind], {}, model.sampling_entries)
    once: dict[str, ConfigProblem] = {}
    for problem in found:
        once.setdefault(problem.key, problem)
    return _sort_problems(once.values())


def _sort_problems(problems: Iterable[ConfigProblem]) -> list[ConfigProblem]:
    """As the user will work through them: the file from top to bottom, then variables, then flags."""
    return sorted(problems, key=lambda one: (one.origin.rank, one.origin.line or 0))


def _collect_set_values(entries: Mapping[str, ConfigEntry]) -> dict[str, Any]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}
