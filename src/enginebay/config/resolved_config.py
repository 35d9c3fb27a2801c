"""The configuration as the rest of Enginebay sees it: typed and frozen."""

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
from enginebay.config.sections.server_section import ServerConfig
from enginebay.contract import EngineSpec
from enginebay.errors import ConfigError, UnknownEngine


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """A key that loads and has no effect, with what to use instead."""

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
    source: str | None = None  # None: the model store knows the name
    engine: str | None = None  # a kind, "auto", or None: as at the top level
    task: str = "generate"
    tool_format: str = AUTO
    trust_remote_code: bool | None = None
    pinned: bool = False
    load: str = "start"  # or "use"
    idle_s: float | None = None  # None: as the fleet's; `Config.idle_s_for` has the one in force
    memory_bytes: int | None = None
    sleep: str | int | None = None  # None: as the fleet's; `Config.sleep_for` has the one in force
    fallback: tuple[str, ...] = ()  # kinds; `Config.fallback_for` leaves out the engine it runs on anyway
    fallback_on: tuple[str, ...] = FALLBACK_TRIGGERS
    may_leave_host: bool = False
    smaller_on_out_of_memory: bool = False
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
    sampling: Mapping[str, Any] = field(default_factory=dict)  # set values only, as `Sampling` takes them
    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    warnings: tuple[ConfigWarning, ...] = ()
    path: Path | None = None
    specs: Mapping[str, EngineSpec] = field(default_factory=dict, repr=False)
    entries: Mapping[str, ConfigEntry] = field(
        default_factory=dict, repr=False
    )  # engine, model, offline, experiment keys
    universal: Mapping[str, ConfigEntry] = field(default_factory=dict, repr=False)
    section_entries: Mapping[str, Mapping[str, ConfigEntry]] = field(default_factory=dict, repr=False)  # server, fleet
    sampling_entries: Mapping[str, ConfigEntry] = field(default_factory=dict, repr=False)
    blocks: Mapping[str, EngineBlock] = field(default_factory=dict, repr=False)

    def engine_for(self, model: str | None = None) -> str:
        """The engine this model asks for: a kind, or "auto". A flag beats what the file says of the model."""
        return str(self.engine_entry(model).value or AUTO)

    def engine_entry(self, model: str | None = None) -> ConfigEntry:
        """What `engine_for` goes by, with where it was set."""
        return self._resolve_entry("engine", self.entries, model)

    def list_study_engines(self) -> tuple[str, ...]:
        """What an experiment measures: `engines`, unless a later source names a single one; kinds, or "auto"."""
        listed, single = self.entries.get("engines", ConfigEntry(())), self.engine_entry(self.model)
        named_later = bool(single.value) and single.origin.rank > listed.origin.rank
        return tuple(listed.value or ()) if listed.value and not named_later else (self.engine_for(self.model),)

    def fallback_for(self, model: str, kind: str | None = None) -> tuple[str, ...]:
        """The engines to try in turn after `kind`, the one that the model runs on (unset: the one it asks for)."""
        kind = kind or self.engine_for(model)
        return tuple(one for one in self._get_model(model).fallback if one != kind)

    def idle_s_for(self, model: str) -> float | None:
        """After how long without a request this model is unloaded; None: never."""
        found = self._resolve_entry("idle_s", self.section_entries.get("fleet", {}), model).value
        return None if found is None else float(found)

    def sleep_for(self, model: str) -> str | int:
        """How this model is put to sleep: "auto", "off", 1 or 2."""
        found: str | int | None = self._resolve_entry("sleep", self.section_entries.get("fleet", {}), model).value
        return FleetConfig().sleep if found is None else found

    def check_may_leave_host(self, kind: str, model: str) -> None:
        """Raises `ConfigError` when this engine would send the model's prompts to another host and must not."""
        reason = self.explain_leaving_host(self._get_spec(kind).kind, model)
        if reason:
            raise ConfigError(f"{model}: {reason}", "or run it on an engine of this host")

    def explain_leaving_host(self, kind: str, model: str) -> str:
        """Why this model must not run on this engine: it is on another host; empty when it may."""
        spec = self.specs.get(kind)
        if spec is None or not spec.remote or self._get_model(model).may_leave_host:
            return ""
        allowing = f"models.{model}.may_leave_host: true"
        return f"{kind} would send this model's prompts to another host; set {allowing} if they may leave it"

    def settings_for(self, kind: str, model: str | None = None) -> dict[str, Any]:
        """Load settings by dotted name: universal keys, the engine's block, the model's block for this engine.

        Retired and inapplicable keys are among them, since only the installed version knows what it still takes.
        Raises `ConfigError` when a universal key has a value this engine cannot take.
        """
        found, misfits = self.setting_entries_for(kind, model)
        if misfits:
            raise ConfigError(str(misfits[0]), f"change it, or set it under {kind}: for that engine alone")
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    def setting_entries_for(
        self, kind: str, model: str | None = None
    ) -> tuple[dict[str, ConfigEntry], list[ConfigProblem]]:
        """Load settings with where each came from, and the universal ones whose value this engine cannot take."""
        spec = self._get_spec(kind)
        general = self.blocks.get(spec.kind, EngineBlock()).settings
        own = self._get_model(model).blocks.get(spec.kind, EngineBlock()).settings
        known = {name: entry for name, entry in self.universal.items() if name in spec.settings}
        found = overlay(known, general, own)
        misfits: list[ConfigProblem] = []
        for name in [name for name, entry in found.items() if entry is known.get(name)]:
            try:
                found[name] = replace(found[name], value=coerce_value(spec.settings[name], found[name]))
            except InvalidValue as misfit:
                misfits.append(ConfigProblem(found[name].key_path, f"{misfit} (on {spec.kind})", found[name].origin))
        return found, misfits

    def sampling_for(self, kind: str, model: str | None = None) -> dict[str, Any]:
        """Request defaults for a model on an engine, without those the engine cannot do (they are warned about)."""
        spec = self._get_spec(kind)
        found = self._sampling_entries_for(spec, model)
        return {
            name: entry.value
            for name, entry in found.items()
            if entry.value is not None and not is_sampling_refused(spec, name, entry)
        }

    def warnings_for(
        self, kind: str, model: str | None = None, spec: EngineSpec | None = None
    ) -> tuple[ConfigWarning, ...]:
        """Further warnings, beyond `warnings`, once `auto` has become this engine.

        `spec`: the engine's declarations at its installed version, where they are known.
        """
        spec = spec or self._get_spec(kind)
        settings = {**self.universal, **self.setting_entries_for(kind, model)[0]}
        found = map(
            ConfigWarning.from_problem, find_inapplicable(spec, settings, self._sampling_entries_for(spec, model))
        )
        return tuple(warning for warning in found if warning not in self.warnings)

    def trusts_remote_code(self, kind: str, model: str) -> bool:
        """May code that comes with this model run? The model's own word, else the engine's for models of this file.

        A file that names no model at all speaks for whichever model is run with it.
        """
        spec = self._get_spec(kind)
        found = self._get_model(model)
        own = found.blocks.get(spec.kind, EngineBlock()).trust
        if own is not None and own.value is not None:
            return bool(own.value)
        if found.trust_remote_code is not None:
            return found.trust_remote_code
        trust = self.blocks.get(spec.kind, EngineBlock()).trust
        if trust is None or not trust.value:
            return False
        named = {*self.models, self.entries["model"].value} if self._is_model_named_with(trust) else {*self.models}
        return not named or model in named

    def find_origin(self, key: str) -> Origin:
        """Where a top-level, sampling, server, fleet or universal value came from; `kind.setting` for an engine's."""
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
        """Is the top-level model given at the same place as this trust, rather than by someone's flag?"""
        model = self.entries.get("model")
        return model is not None and bool(model.value) and model.origin.rank <= trust.origin.rank

    def _sampling_entries_for(self, spec: EngineSpec, model: str | None) -> dict[str, ConfigEntry]:
        chosen = self._get_model(model)
        general = self.blocks.get(spec.kind, EngineBlock()).sampling
        own = chosen.blocks.get(spec.kind, EngineBlock()).sampling
        return overlay(self.sampling_entries, general, chosen.sampling_entries, own)

    def _resolve_entry(self, key: str, general: Mapping[str, ConfigEntry], model: str | None) -> ConfigEntry:
        """Of what is said in general and of the model: the later source, and at equal sources the model's own."""
        own = self._get_model(model).entries.get(key)
        layers = {key: general.get(key, ConfigEntry(None))}, {key: own} if own and own.value is not None else {}
        return overlay(*layers)[key]

    def _get_model(self, name: str | None) -> ModelConfig:
        return self.models.get(name or "", ModelConfig(name or ""))

    def _get_spec(self, kind: str) -> EngineSpec:
        for spec in self.specs.values():
            if kind == spec.kind or kind in spec.aliases:
                return spec
        raise UnknownEngine(f"there is no engine called {kind!r}", f"known engines: {', '.join(self.specs)}")
