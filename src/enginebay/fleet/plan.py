"""From what a user asks for to what a worker is started with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginebay.config.load import check_settings, load_config, without_effect
from enginebay.config.model import Config, ModelConfig
from enginebay.contract import EngineSpec, LaunchMode, Load
from enginebay.engines import registry
from enginebay.engines.effective import effective
from enginebay.errors import ConfigError
from enginebay.fleet import environments, models
from enginebay.fleet.children import operation
from enginebay.fleet.decide import decide_stored
from enginebay.fleet.logs import log_of
from enginebay.fleet.selection import Decision
from enginebay.home import runtime_dir
from enginebay.worker.process import Launch

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A worker that could be started, and why it is this one."""

    model: str
    spec: EngineSpec  # as the installed version keeps it
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    source: Path | None  # the model's files as stored, for the tokenizer and the chat template
    launch: Launch
    tool_format: str = "auto"  # how the model writes tool calls, if the configuration says so
    version: str = ""  # of the installed engine
    devices: tuple[str, ...] = ("cpu",)  # that the installed library can use


@operation()
def make_plan(
    model: str | None = None,
    *,
    engine: str | None = None,
    config: Config | None = None,
    settings: Mapping[str, Any] | None = None,
    task: str | None = None,
    strict: bool = False,
    convert: bool = True,
    say: Say = lambda _: None,
) -> Plan:
    """Resolve the model, choose the engine, find its environment. Fetches and converts what is missing.

    `engine` is a kind or `KIND==VERSION`; `settings` come on top of the configuration's; with `strict` a retired or
    inapplicable key is an error. Without `convert` the plan is for looking at: the model is not made into what the engine reads.
    """
    config = config or load_config(None)
    name = model or config.model or models.DEFAULT
    configured = config.models.get(name) or ModelConfig(name)
    asked, _, version = (engine or config.engine_for(name)).partition("==")
    if asked != "auto":
        environments.find(asked, version or None)  # a missing engine is told before anything is fetched for it
    stored, decision = _model_and_engine(name, configured, asked, config, say)
    config.check_leaving(decision.kind, name)
    environment = environments.find(decision.kind, version or None)
    spec = effective(environment.spec, environment.probe)
    given = check_settings(spec, settings or {})
    chosen = {**config.settings_for(spec.kind, name), **given}
    warnings = (*map(str, config.warnings_for(spec.kind, name, spec)), *without_effect(spec, given))
    if strict and warnings:
        raise ConfigError(warnings[0], "remove the key, or leave out --strict")
    path = _path(stored, spec, environment.python, say, convert=convert) if stored else Path()
    load = Load(
        kind=spec.kind,
        engine=spec.engine,
        model=name,
        path=str(path),
        settings=chosen,
        loras=dict(configured.loras),
        task=task or _task(configured, stored),
        trust_remote_code=config.trusts_remote_code(spec.kind, name),
    )
    mode, processes = launch_mode(spec, chosen)
    launch = Launch(
        load=load,
        python=environment.python,
        runtime_dir=runtime_dir(),
        log=log_of(spec.kind, name),
        mode=mode,
        processes=processes,
        environment=environment.variables,
    )
    source = stored.path if stored else None
    return Plan(
        name, spec, tuple(decision.reasons), warnings, source, launch, configured.tool_format,
        environment.version, tuple(environment.probe.devices),
    )  # fmt: skip


def _model_and_engine(
    name: str, configured: ModelConfig, asked: str, config: Config, say: Say
) -> tuple[models.StoredModel | None, Decision]:
    """The stored model and the engine for it; an engine without weights needs no model."""
    if asked != "auto" and not needs_weights(registry.spec(asked)):
        return None, Decision(registry.spec(asked).kind, (f"asked for by name: {asked}",))
    kinds = [asked] if asked != "auto" else [spec.kind for spec in registry.specs().values()]
    with_code = any(config.trusts_remote_code(kind, name) for kind in kinds)
    stored = models.ensure(configured.source or name, offline=config.offline, say=say, with_code=with_code)
    return stored, decide_stored(stored, asked)


def launch_mode(spec: EngineSpec, settings: Mapping[str, Any]) -> tuple[LaunchMode, int]:
    """How many processes an engine is started as, and by which launcher. Pure."""
    shards = int(settings.get("sharding.num_shards") or 1)
    strategy = settings.get("sharding.strategy")
    if LaunchMode.TORCHRUN in spec.runtime.launch_modes and strategy == "tensor_parallel" and shards > 1:
        return LaunchMode.TORCHRUN, shards
    asked = settings.get("launch")
    if asked is None:
        return LaunchMode.DIRECT, 1
    mode = LaunchMode(asked)
    if mode not in spec.runtime.launch_modes:
        allowed = ", ".join(one.value for one in spec.runtime.launch_modes)
        raise ConfigError(f"{spec.kind} cannot be launched by {mode.value}", f"launch is one of: {allowed}")
    return mode, shards


def _task(configured: ModelConfig, stored: models.StoredModel | None) -> str:
    """What a model without a head for the next token (BertModel, ...) is for, unless the configuration says otherwise."""
    headless = stored is not None and stored.architecture.endswith("Model")
    return "embed" if headless and "task" not in configured.entries else configured.task


def needs_weights(spec: EngineSpec) -> bool:
    return bool({"gguf", "safetensors"} & set(spec.formats))


def _path(stored: models.StoredModel, spec: EngineSpec, python: Path, say: Say, *, convert: bool) -> Path:
    """The model in a format the engine reads; a GGUF is made dense once for engines that cannot read it."""
    if stored.format in spec.formats:
        return stored.path
    if stored.format == "gguf" and "safetensors" in spec.formats:
        return models.dense_path(stored, python, say=say) if convert else stored.path
    raise ConfigError(
        f"{spec.kind} reads {', '.join(spec.formats)}, and {stored.name} is {stored.format}",
        f"see which engine fits with: bay engines why {stored.name}",
    )
