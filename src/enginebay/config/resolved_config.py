"""The resolved configuration: typed and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from enginebay.config.entries.config_entry import DEFAULT, ConfigEntry, ConfigProblem, Origin, overlay
from enginebay.config.entries.value_coercion import InvalidValue, coerce_value
from enginebay.config.sections.config_keys import AUTO, FALLBACK_TRIGGERS
from enginebay.config.sections.engine_block import EngineBlock, find_inapplicable, is_sampling_refused
from enginebay.config.sections.experiment_section import ExperimentConfig
from enginebay.config.sections.fleet_section import FleetConfig
from enginebay.config.sections.replica_policy import ReplicaPolicy
from enginebay.config.sections.server_section import ServerConfig
from enginebay.contract import EngineSpec
from enginebay.errors import ConfigError, UnknownEngine

_CONTEXT_LENGTH = "context_length"


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """A key without effect, with what to use instead."""

    key: str
    message: str
    line: int | None = None
    where: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.message}" if self.where else f"{self.key}: {self.message}"

    @classmethod
    def from_problem(cls, problem: ConfigProblem) -> ConfigWarning:
        return cls(problem.key, problem.message, problem.origin.line, str(problem.origin))


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One entry of `models:`. Unset fields fall back to the top level."""

    name: str
    source: str | None = None  # None: looked up in the model store by name
    engine: str | None = None  # a kind, "auto", or None: the top-level engine
    task: str = "generate"
    tool_format: str = AUTO
    reasoning_format: str = AUTO
    trust_remote_code: bool | None = None
    pinned: bool = False
    load: str = "start"  # or "use"
    context_length: int | None = None  # a setting of the engine; see `Config.setting_entries_for`
    idle_s: float | None = None  # None: fleet.idle_s; see `Config.idle_s_for`
    memory_bytes: int | None = None
    gpus: int | float | tuple[int, ...] | None = None  # whole GPUs, a fraction of one, or exactly these
    sleep: str | int | None = None  # None: fleet.sleep; see `Config.sleep_for`
    replicas: ReplicaPolicy | None = None  # None: one
    fallback: tuple[str, ...] = ()  # kinds; see `Config.fallback_for`
    fallback_on: tuple[str, ...] = FALLBACK_TRIGGERS
    resume: bool | None = None  # None: server.resume; see `Config.resume_for`
    may_leave_host: bool = False
    smaller_on_out_of_memory: bool = False
    env: Mapping[str, str | None] | None = field(default=None, repr=False)  # a value of None: passed on
    allow_special_tokens: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    loras: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[str, ConfigEntry] = field(default_factory=dict, repr=False)
    sampling_entries: Mapping[str, ConfigEntry] = field(default_factory=dict, repr=False)
    blocks: Mapping[str, EngineBlock] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Config:
    """Defaults, file, environment and flags, merged and checked."""

    engine: str = AUTO
    model: str | None = None
    offline: bool = False
    models: Mapping[str, ModelConfig] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)  # set values only, in the types of `Sampling`
    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    warnings: tuple[ConfigWarning, ...] = ()
    path: Path | None = None
    trusted: bool = (
        True  # the file; false if it was found in the working directory and `bay config trust` does not know it
    )
    specs: Mapping[str, EngineSpec] = field(default_factory=dict, repr=False)
    entries: Mapping[str, ConfigEntry] = field(
        default_factory=dict, repr=False
    )  # engine, model, offline, experiment keys
    universal: Mapping[str, ConfigEntry] = field(default_factory=dict, repr=False)
    section_entries: Mapping[str, Mapping[str, ConfigEntry]] = field(default_factory=dict, repr=False)  # server, fleet
    sampling_entries: Mapping[str, ConfigEntry] = field(default_factory=dict, repr=False)
    blocks: Mapping[str, EngineBlock] = field(default_factory=dict, repr=False)

    def engine_for(self, model: str | None = None) -> str:
        """Return the engine of a model: a kind or "auto". A flag overrides the model's key in the file."""
        return str(self.engine_entry(model).value or AUTO)

    def engine_entry(self, model: str | None = None) -> ConfigEntry:
        """Return the entry behind `engine_for`, with its origin."""
        return self._resolve_entry("engine", self.entries, model)

    def list_study_engines(self) -> tuple[str, ...]:
        """List the engines to measure: `engines`, unless a stronger source sets `engine`. Kinds or "auto"."""
        several, single = self.entries.get("engines", ConfigEntry(())), self.engine_entry(self.model)
        overridden = bool(single.value) and single.origin.rank > several.origin.rank
        return tuple(several.value or ()) if several.value and not overridden else (self.engine_for(self.model),)

    def fallback_for(self, model: str, kind: str | None = None) -> tuple[str, ...]:
        """Return the engines to try in order after `kind`, the model's engine (default: `engine_for`)."""
        kind = kind or self.engine_for(model)
        return tuple(other for other in self._get_model(model).fallback if other != kind)

    def idle_s_for(self, model: str) -> float | None:
        """Return the idle time after which this model is unloaded; None: never."""
        value = self._resolve_entry("idle_s", self.section_entries.get("fleet", {}), model).value
        return None if value is None or value < 0 else float(value)

    def sleep_for(self, model: str) -> str | int:
        """Return the sleep mode of this model: "auto", "off", 1 or 2."""
        mode: str | int | None = self._resolve_entry("sleep", self.section_entries.get("fleet", {}), model).value
        return FleetConfig().sleep if mode is None else mode

    def resume_for(self, model: str) -> bool:
        """Return whether responses of this model continue on another worker when their own dies."""
        value = self._resolve_entry("resume", self.section_entries.get("server", {}), model).value
        return ServerConfig().resume if value is None else bool(value)

    def check_may_leave_host(self, kind: str, model: str) -> None:
        """Raise `ConfigError` if this engine would send the model's prompts to another host without permission."""
        reason = self.explain_leaving_host(self._get_spec(kind).kind, model)
        if reason:
            raise ConfigError(f"{model}: {reason}", "or run it on a local engine")

    def explain_leaving_host(self, kind: str, model: str) -> str:
        """Return why this model must not run on a remote engine; empty if it may."""
        spec = self.specs.get(kind)
        if spec is None or not spec.remote or self._get_model(model).may_leave_host:
            return ""
        return f"{kind} would send this model's prompts to another host; set models.{model}.may_leave_host: true to allow it"

    def settings_for(self, kind: str, model: str | None = None) -> dict[str, Any]:
        """Return load settings by dotted name: universal keys, the engine's section, the model's section for this engine.

        Includes retired and inapplicable keys, since only the installed version knows which it accepts.
        Raises `ConfigError` if a universal key has a value that this engine does not accept.
        """
        entries, problems = self.setting_entries_for(kind, model)
        if problems:
            raise ConfigError(str(problems[0]), f"change it, or set it under {kind}: for that engine only")
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def setting_entries_for(
        self, kind: str, model: str | None = None
    ) -> tuple[dict[str, ConfigEntry], list[ConfigProblem]]:
        """Return load settings with their origins, and problems of universal values that this engine does not accept."""
        spec = self._get_spec(kind)
        general = self.blocks.get(spec.kind, EngineBlock()).settings
        chosen = self._get_model(model)
        own = chosen.blocks.get(spec.kind, EngineBlock()).settings
        known = {name: entry for name, entry in self.universal.items() if name in spec.settings}
        translated = _translate_context_length(chosen, spec)
        entries = overlay(known, general, translated, own)
        problems: list[ConfigProblem] = []
        for name in [name for name, entry in entries.items() if entry in (known.get(name), translated.get(name))]:
            try:
                entries[name] = replace(entries[name], value=coerce_value(spec.settings[name], entries[name]))
            except InvalidValue as error:
                problems.append(
                    ConfigProblem(entries[name].key_path, f"{error} (on {spec.kind})", entries[name].origin)
                )
        return entries, problems

    def find_general_context_length(self, model: str) -> dict[str, ConfigEntry]:
        """Return the context length that the engine's section sets for all models, under the models' name for it."""
        kind = self.engine_for(model)
        name = self.specs[kind].find_setting(_CONTEXT_LENGTH) if kind in self.specs else None
        entry = self.blocks.get(kind, EngineBlock()).settings.get(name or "")
        return {} if entry is None else {_CONTEXT_LENGTH: entry}

    def sampling_for(self, kind: str, model: str | None = None) -> dict[str, Any]:
        """Return request defaults of a model on an engine, without those that the engine refuses."""
        spec = self._get_spec(kind)
        return {
            name: entry.value
            for name, entry in self._sampling_entries_for(spec, model).items()
            if entry.value is not None and not is_sampling_refused(spec, name, entry)
        }

    def warnings_for(
        self, kind: str, model: str | None = None, spec: EngineSpec | None = None
    ) -> tuple[ConfigWarning, ...]:
        """Return warnings in addition to `warnings` once `auto` is resolved to this engine.

        `spec` is the engine's spec at its installed version, if known.
        """
        spec = spec or self._get_spec(kind)
        lacking = find_unsupported_context_length(self._get_model(model), spec)
        settings = {**self.universal, **lacking, **self.setting_entries_for(kind, model)[0]}
        problems = find_inapplicable(spec, settings, self._sampling_entries_for(spec, model))
        warnings = map(ConfigWarning.from_problem, problems)
        return tuple(warning for warning in warnings if warning not in self.warnings)

    def trusts_remote_code(self, kind: str, model: str) -> bool:
        """Return whether code shipped with this model may run: the model's key, else the engine's for models of this file.

        In a file that names no model, the engine's key applies to any model.
        """
        spec = self._get_spec(kind)
        configured = self._get_model(model)
        own = configured.blocks.get(spec.kind, EngineBlock()).trust
        if own is not None and own.value is not None:
            return bool(own.value)
        if configured.trust_remote_code is not None:
            return configured.trust_remote_code
        trust = self.blocks.get(spec.kind, EngineBlock()).trust
        if trust is None or not trust.value:
            return False
        named = {*self.models, self.entries["model"].value} if self._is_model_named_with(trust) else {*self.models}
        return not named or model in named

    def find_origin(self, key: str) -> Origin:
        """Return the origin of a top-level, sampling, server, fleet or universal key, or of `kind.setting`."""
        if key in self.entries or key in self.universal:
            return (self.entries.get(key) or self.universal[key]).origin
        group, _, name = key.partition(".")
        if group == "sampling":
            return self.sampling_entries.get(name, ConfigEntry(None)).origin
        if group in self.section_entries:
            return self.section_entries[group].get(name, ConfigEntry(None)).origin
        block = self.blocks.get(group, EngineBlock())
        return (block.settings.get(name) or block.sampling.get(name) or ConfigEntry(None, DEFAULT)).origin

    def _is_model_named_with(self, trust: ConfigEntry) -> bool:
        """Return whether the top-level model comes from the same source as this trust, rather than from a flag."""
        model = self.entries.get("model")
        return model is not None and bool(model.value) and model.origin.rank <= trust.origin.rank

    def _sampling_entries_for(self, spec: EngineSpec, model: str | None) -> dict[str, ConfigEntry]:
        chosen = self._get_model(model)
        general = self.blocks.get(spec.kind, EngineBlock()).sampling
        own = chosen.blocks.get(spec.kind, EngineBlock()).sampling
        return overlay(self.sampling_entries, general, chosen.sampling_entries, own)

    def _resolve_entry(self, key: str, general: Mapping[str, ConfigEntry], model: str | None) -> ConfigEntry:
        """Return the entry from the stronger source; at equal sources, the model's own."""
        own = self._get_model(model).entries.get(key)
        layers = {key: general.get(key, ConfigEntry(None))}, {key: own} if own and own.value is not None else {}
        return overlay(*layers)[key]

    def _get_model(self, name: str | None) -> ModelConfig:
        return self.models.get(name or "", ModelConfig(name or ""))

    def _get_spec(self, kind: str) -> EngineSpec:
        for spec in self.specs.values():
            if kind == spec.kind or kind in spec.aliases:
                return spec
        raise UnknownEngine(f"unknown engine {kind!r}", f"available: {', '.join(self.specs)}")


def _translate_context_length(model: ModelConfig, spec: EngineSpec) -> dict[str, ConfigEntry]:
    """Return the model's context length under the engine's name for it."""
    entry, name = model.entries.get(_CONTEXT_LENGTH), spec.find_setting(_CONTEXT_LENGTH)
    return {} if entry is None or entry.value is None or name is None else {name: entry}


def find_unsupported_context_length(model: ModelConfig, spec: EngineSpec) -> dict[str, ConfigEntry]:
    """Return the model's context length if the engine has no such setting."""
    entry = model.entries.get(_CONTEXT_LENGTH)
    return {} if entry is None or spec.find_setting(_CONTEXT_LENGTH) is not None else {_CONTEXT_LENGTH: entry}
