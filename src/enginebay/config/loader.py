"""Loads a configuration: finds the file, merges the layers, checks every key and reports all problems at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from enginebay.config.entries.config_entry import (
    ConfigEntry,
    ConfigProblem,
    ProblemCollector,
    find_untrusted_file,
    merge,
)
from enginebay.config.entries.yaml_reader import read_yaml_file
from enginebay.config.layers.canonical_keys import canonicalize
from enginebay.config.layers.layer_sources import (
    build_flag_layer,
    build_preset_layer,
    build_sweep_layer,
    find_config_file,
    is_found_locally,
    read_environment_layer,
    read_file_layer,
    require_file,
)
from enginebay.config.preset_registry import find_preset
from enginebay.config.resolved_config import Config, ConfigWarning, ModelConfig, find_unsupported_context_length
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
from enginebay.config.sections.replica_policy import parse_replicas
from enginebay.config.sections.sweep_grid import find_sweep_problems
from enginebay.contract import EngineSpec, Preset, Sampling, Setting
from enginebay.errors import ConfigError, InvalidRequest


def find_engine_problems(config: Config) -> list[ConfigProblem]:
    """Return problems of fallback chains: repeated engines, and remote engines without `may_leave_host`."""
    models = dict.fromkeys([*config.models, *([config.model] if config.model else [])])
    return [
        problem
        for name in models
        for problem in (*_find_repeated_engines(config, name), *_find_forbidden_remotes(config, name))
    ]


def _get_fallback_entry(config: Config, model: str) -> ConfigEntry:
    configured = config.models.get(model)
    return ConfigEntry(()) if configured is None else configured.entries.get("fallback", ConfigEntry(()))


def _find_repeated_engines(config: Config, model: str) -> Iterator[ConfigProblem]:
    """Report a chain that lists the model's own engine.

    A preset, flag or variable may choose an engine of the chain; `Config.fallback_for` drops it then.
    """
    engine, chain = config.engine_entry(model), _get_fallback_entry(config, model)
    chosen_apart = engine.origin.source == "preset" or engine.origin.rank > chain.origin.rank
    if engine.value in (chain.value or ()) and not chosen_apart:
        yield ConfigProblem(chain.key_path, f"lists {engine.value}, the engine it falls back from", chain.origin)


def _find_forbidden_remotes(config: Config, model: str) -> Iterator[ConfigProblem]:
    engine, chain = config.engine_entry(model), _get_fallback_entry(config, model)
    for entry, kinds in ((engine, [engine.value]), (chain, chain.value or ())):
        for kind in kinds:
            reason = config.explain_leaving_host(kind, model)
            if reason:
                yield ConfigProblem(entry.key_path, reason, entry.origin)


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """A config and its problems; usable only without problems."""

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
    """Load the config: defaults < preset < file < environment < flags. Raises `ConfigError` with one line per problem."""
    result = validate_config(path, preset=preset, flags=flags, environ=environ, strict=strict, specs=specs)
    if result.problems:
        raise to_config_error(result.problems)
    return result.config


def check_settings(spec: EngineSpec, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings of one run by dotted name, like an engine section in a file. Raises `ConfigError`."""
    problems = ProblemCollector()
    block = read_engine_block(spec, build_flag_layer(settings, problems), ConfigKeys({spec.kind: spec}), problems)
    for entry in block.sampling.values():
        flag = f"--{entry.key_path.replace('_', '-')}"
        problems.add(
            entry, f"is a request parameter, not an engine setting; set sampling.{entry.key_path}, or pass {flag}"
        )
    if block.trust is not None:
        problems.add(block.trust, "can only be set for a model or an engine in the config file")
    if problems.items:
        raise to_config_error(tuple(problems.items))
    return _collect_set_values(block.settings)


def list_ineffective_settings(spec: EngineSpec, settings: Mapping[str, Any]) -> list[str]:
    """Return one line per setting of a run that has no effect on this engine."""
    problems = ProblemCollector()
    block = read_engine_block(spec, build_flag_layer(settings, problems), ConfigKeys({spec.kind: spec}), problems)
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
    """Like `load_config`, but return the problems. Raises only if the file or preset does not exist.

    `changes` are those of a sweep point; they override everything else.
    """
    known_keys = ConfigKeys(_installed_specs() if specs is None else specs)
    problems = ProblemCollector()
    chosen = None if preset is None else find_preset(preset)
    file = find_config_file(path, environ)
    needs_trust = is_found_locally(file, path, environ)
    file_layer = read_file_layer(file, problems, needs_trust)
    root = canonicalize(build_preset_layer(chosen), known_keys, problems)
    root = merge(root, _drop_auto_engine(canonicalize(file_layer, known_keys, problems), chosen))
    for layer in (
        read_environment_layer(environ, problems),
        build_flag_layer(flags, problems),
        build_sweep_layer(changes, problems),
    ):
        root = merge(root, canonicalize(layer, known_keys, problems))
    config = _ConfigBuilder(known_keys, problems, file).build(root.value)
    if not changes:
        problems.items += _find_sweep_problems(config, known_keys)
    warnings = [*_collect_warnings(config), *_find_unused_preset(config, chosen)]
    if strict:
        problems.items += warnings
    config = replace(
        config, warnings=tuple(map(ConfigWarning.from_problem, warnings)), trusted=file_layer.origin.trusted
    )
    return ValidationResult(config, tuple(_sort_problems(dict.fromkeys(problems.items))))


def inspect_file(path: Path) -> tuple[bytes, list[ConfigProblem]]:
    """Return the content of a file, and what only a trusted file may do in it. Raises `ConfigError` if it cannot be read."""
    contents: list[bytes] = []

    def keep(content: bytes) -> bool:
        contents.append(content)
        return False

    known_keys, problems = ConfigKeys(_installed_specs()), ProblemCollector()
    file = require_file(path, "pass the path of an existing file")
    layer = read_yaml_file(file, str(file), problems, keep)
    if not contents:
        raise to_config_error(tuple(problems.items))
    config = _ConfigBuilder(known_keys, problems, path).build(canonicalize(layer, known_keys, problems).value)
    problems.items += _find_sweep_problems(config, known_keys)
    return contents[0], _sort_problems(dict.fromkeys(problem for problem in problems.items if problem.sensitive))


def _find_sweep_problems(config: Config, known_keys: ConfigKeys) -> list[ConfigProblem]:
    if SWEEP_KEY not in config.entries:
        return []
    sweep = config.entries[SWEEP_KEY]
    check = partial(_validate_changes, known_keys=known_keys, untrusted_file=find_untrusted_file(sweep))
    return find_sweep_problems(sweep, check)


def _validate_changes(changes: Mapping[str, Any], known_keys: ConfigKeys, untrusted_file: str) -> list[ConfigProblem]:
    """Return the problems of sweep changes on any engine and config: unknown keys and invalid values."""
    problems = ProblemCollector()
    root = canonicalize(build_sweep_layer(changes, problems, untrusted_file), known_keys, problems)
    _ConfigBuilder(known_keys, problems, None).build(root.value)
    return problems.items


def _drop_auto_engine(file: ConfigEntry, preset: Preset | None) -> ConfigEntry:
    """Drop `engine: auto` from the file layer if a preset chooses the engine."""
    if preset is None or file.value.get("engine", ConfigEntry(None)).value != AUTO:
        return file
    return replace(file, value={name: entry for name, entry in file.value.items() if name != "engine"})


def _find_unused_preset(config: Config, preset: Preset | None) -> list[ConfigProblem]:
    """Report a preset whose engine is not the chosen one."""
    if preset is None or preset.engine in (config.engine_for(config.model), *config.list_study_engines()):
        return []
    engine = config.engine_entry(config.model)
    reason = f"{preset.name} applies to {preset.engine} only, and {engine.value} is chosen"
    return [ConfigProblem("preset", f"{reason}; use a preset of {engine.value}, or none", engine.origin)]


def _installed_specs() -> Mapping[str, EngineSpec]:
    from enginebay.engines.registry import load_specs

    return load_specs()


class _ConfigBuilder:
    """Checks the merged tree and builds a Config."""

    def __init__(self, known_keys: ConfigKeys, problems: ProblemCollector, file: Path | None) -> None:
        self.known_keys = known_keys
        self.problems = problems
        self.file = file

    def build(self, root: Mapping[str, ConfigEntry]) -> Config:
        entries = self.check_keys(
            root, ROOT_KEYS, lambda name, entry: check_entry(ROOT_KEYS[name], entry, self.problems)
        )
        section = root.get("experiment", ConfigEntry({}))
        experiment = read_experiment(section, self.known_keys, self.problems, self.resolve_path)
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
        self.check_replica_names(config)
        self.problems.items += find_engine_problems(config)
        return config

    def check_keys(
        self,
        section: Mapping[str, ConfigEntry],
        table: Iterable[str],
        check: Callable[[str, ConfigEntry], ConfigEntry | None],
    ) -> dict[str, ConfigEntry]:
        checked: dict[str, ConfigEntry] = {}
        for name in table:
            entry = check(name, section[name]) if name in section else None
            if entry is not None:
                checked[name] = self.resolve_engine(entry) if name == "engine" else entry
        return checked

    def resolve_engine(self, entry: ConfigEntry) -> ConfigEntry:
        """Replace a name or alias with its kind; report an unknown one."""
        if entry.value in (None, AUTO):
            return entry
        return replace(entry, value=self.known_keys.require_kind(entry.value, entry, self.problems, AUTO))

    def build_section(self, section: str, content: ConfigEntry) -> dict[str, ConfigEntry]:
        """Return the checked keys of `server:` or `fleet:` by dotted name."""
        declared, entries = SECTIONS[section], dict[str, ConfigEntry]()

        def accept(name: str, entry: ConfigEntry) -> bool:
            if name not in declared.settings:
                return False
            value = check_section_entry(declared, name, entry, self.problems)
            if value is not None:
                is_path = name in declared.path_keys and value.value is not None
                entries[name] = replace(value, value=self.resolve_path(value.value, value)) if is_path else value
            return True

        walk_section(content, "", declared.settings, accept, self.known_keys, self.problems)
        if "standby" in entries:
            entries["standby"] = self.known_keys.require_kinds(entries["standby"], self.problems)
        return entries

    def build_sampling(self, section: ConfigEntry) -> dict[str, ConfigEntry]:
        checked: dict[str, ConfigEntry] = {}
        for name, entry in section.children():
            if name not in SAMPLING_KEYS:
                self.known_keys.report_unknown_key(self.problems, entry, SAMPLING_KEYS)
                continue
            value = check_sampling_entry(name, entry, self.problems)
            checked.update({name: value} if value else {})
        self.check_sampling_rules(checked, section)
        return checked

    def check_sampling_rules(self, entries: Mapping[str, ConfigEntry], section: ConfigEntry) -> None:
        """Check the contract's rules across parameters, so that a default cannot make every request invalid."""
        try:
            Sampling(**_collect_set_values(entries))
        except InvalidRequest as error:
            self.problems.add(entries.get(error.param or "", section), error.message)

    def build_engine_blocks(self, section: Mapping[str, ConfigEntry]) -> dict[str, EngineBlock]:
        return {
            kind: read_engine_block(spec, section[kind], self.known_keys, self.problems)
            for kind, spec in self.known_keys.specs.items()
            if kind in section
        }

    def build_model(self, name: str, entry: ConfigEntry) -> ModelConfig:
        keys: dict[str, ConfigEntry] = dict(entry.children())
        plain = self.check_keys(keys, MODEL_KEYS, lambda name, child: check_model_entry(name, child, self.problems))
        if "fallback" in plain:
            plain["fallback"] = self.known_keys.require_kinds(plain["fallback"], self.problems)
        if plain.get("source") is not None and plain["source"].value is not None:
            plain["source"] = replace(plain["source"], value=self.resolve_source(plain["source"]))
        sampling = self.build_sampling(keys.get("sampling", ConfigEntry({})))
        values = {key: child.value for key, child in plain.items() if child.value is not None}
        if "replicas" in values:
            values["replicas"] = parse_replicas(values["replicas"])
        return ModelConfig(
            name,
            **values,
            sampling=MappingProxyType(_collect_set_values(sampling)),
            loras=MappingProxyType(self.build_loras(keys.get("loras", ConfigEntry({})))),
            entries=MappingProxyType({key: child for key, child in keys.items() if key not in MODEL_KEYS} | plain),
            sampling_entries=MappingProxyType(sampling),
            blocks=MappingProxyType(self.build_engine_blocks(keys)),
        )

    def build_loras(self, section: ConfigEntry) -> dict[str, str]:
        paths: dict[str, str] = {}
        for name, entry in section.children():
            value = check_entry(Setting("str", ""), entry, self.problems)
            if value is not None and not value.value:
                self.problems.add(entry, "expected the path of the adapter")
            elif value is not None:
                paths[str(name)] = self.resolve_path(value.value, value)
        return paths

    def resolve_source(self, entry: ConfigEntry) -> str:
        scheme, colon, rest = str(entry.value).partition(":")
        return f"file:{self.resolve_path(rest, entry)}" if colon and scheme == "file" else str(entry.value)

    def resolve_path(self, path: str, entry: ConfigEntry) -> str:
        """Make a path absolute: relative to the config file, or to the current directory if set by a variable or flag."""
        in_file = entry.origin.source in ("file", "sweep")
        base = self.file.absolute().parent if self.file is not None and in_file else Path.cwd()
        return os.path.normpath(base / Path(path).expanduser())

    def check_replica_names(self, config: Config) -> None:
        """Check that no model has the name of another one's replica."""
        for name, model in config.models.items():
            first, _, number = name.rpartition("#")
            other = config.models.get(first)
            if other is not None and other.replicas is not None and number in map(str, other.replicas.list_numbers()):
                message = f"{name} is also the name of a replica of {first}; rename it, or lower {first}'s replicas"
                self.problems.add(model.entries.get("source", ConfigEntry(None)), message)

    def check_universal_settings(self, config: Config) -> None:
        """Check top-level settings against the engines that this config names."""
        for model in (None, *config.models):
            kind = config.engine_for(model)
            if kind in config.specs:
                self.problems.items += config.setting_entries_for(kind, model)[1]


def _list_chosen_engines(config: Config) -> list[str]:
    """List the engines that this config names for its models."""
    kinds = [config.engine_for(), *(config.engine_for(name) for name in config.models)]
    return [kind for kind in dict.fromkeys(kinds) if kind != AUTO and kind in config.specs]


def _collect_warnings(config: Config) -> list[ConfigProblem]:
    """Return each key without effect once: in engine sections always, elsewhere for the chosen engines."""
    problems: list[ConfigProblem] = []
    for blocks in (config.blocks, *(model.blocks for model in config.models.values())):
        for kind, block in blocks.items():
            problems += find_inapplicable(config.specs[kind], block.settings, block.sampling)
    for kind in _list_chosen_engines(config):
        problems += find_inapplicable(config.specs[kind], config.universal, config.sampling_entries)
    for name, model in config.models.items():
        kind = config.engine_for(name)
        if kind in config.specs:
            lacking = find_unsupported_context_length(model, config.specs[kind])
            problems += find_inapplicable(config.specs[kind], lacking, model.sampling_entries)
    unique: dict[str, ConfigProblem] = {}
    for problem in problems:
        unique.setdefault(problem.key, problem)
    return _sort_problems(unique.values())


def _sort_problems(problems: Iterable[ConfigProblem]) -> list[ConfigProblem]:
    """Sort problems: the file from top to bottom, then variables, then flags."""
    return sorted(problems, key=lambda problem: (problem.origin.rank, problem.origin.line or 0))


def _collect_set_values(entries: Mapping[str, ConfigEntry]) -> dict[str, Any]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}
