"""From what a user asks for to what a worker is started with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginebay import environments, models
from enginebay.config.loader import check_settings, list_ineffective_settings, load_config
from enginebay.config.resolved_config import Config, ModelConfig
from enginebay.contract import EngineSpec, LaunchMode, Load
from enginebay.engines import registry
from enginebay.engines.effective_spec import apply_probe
from enginebay.errors import ConfigError
from enginebay.fleet.engine_selection.engine_resolver import decide_engine_for
from enginebay.fleet.engine_selection.selection_rules import EngineDecision
from enginebay.fleet.lifecycle.worker_logs import get_worker_log_path
from enginebay.util.child_processes import interruptible
from enginebay.util.paths import runtime_dir
from enginebay.worker.client_side.worker_process import WorkerLaunch

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A worker that could be started, and why it is this one."""

    model: str
    spec: EngineSpec  # as the installed version keeps it
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    source: Path | None  # the model's files as stored, for the tokenizer and the chat template
    launch: WorkerLaunch
    tool_format: str = "auto"  # how the model writes tool calls, if the configuration says so
    version: str = ""  # of the installed engine
    devices: tuple[str, ...] = ("cpu",)  # that the installed library can use


@interruptible()
def make_launch_plan(
    model: str | None = None,
    *,
    engine: str | None = None,
    config: Config | None = None,
    settings: Mapping[str, Any] | None = None,
    task: str | None = None,
    strict: bool = False,
    convert: bool = True,
    say: Say = lambda _: None,
) -> LaunchPlan:
    """Resolve the model, choose the engine, find its environment. Fetches and converts what is missing.

    `engine` is a kind or `KIND==VERSION`; `settings` come on top of the configuration's; with `strict` a retired or
    inapplicable key is an error. Without `convert` the plan is for looking at: the model is not made into what the engine reads.
    """
    config = config or load_config(None)
    name = model or config.model or models.DEFAULT_MODEL
    configured = config.models.get(name) or ModelConfig(name)
    asked, _, version = (engine or config.engine_for(name)).partition("==")
    if asked != "auto":
        environments.find_environment(
            asked, version or None
        )  # a missing engine is told before anything is fetched for it
    stored, decision = _resolve_model_and_engine(name, configured, asked, config, say)
    config.check_may_leave_host(decision.kind, name)
    environment = environments.find_environment(decision.kind, version or None)
    spec = apply_probe(environment.spec, environment.probe)
    given = check_settings(spec, settings or {})
    chosen = {**config.settings_for(spec.kind, name), **given}
    warnings = (*map(str, config.warnings_for(spec.kind, name, spec)), *list_ineffective_settings(spec, given))
    if strict and warnings:
        raise ConfigError(warnings[0], "remove the key, or leave out --strict")
    path = _prepare_model_path(stored, spec, environment.python, say, convert=convert) if stored else Path()
    load = Load(
        kind=spec.kind,
        engine=spec.engine,
        model=name,
        path=str(path),
        settings=chosen,
        loras=dict(configured.loras),
        task=task or _infer_task(configured, stored),
        trust_remote_code=config.trusts_remote_code(spec.kind, name),
    )
    mode, processes = choose_launch_mode(spec, chosen)
    launch = WorkerLaunch(
        load=load,
        python=environment.python,
        runtime_dir=runtime_dir(),
        log=get_worker_log_path(spec.kind, name),
        mode=mode,
        processes=processes,
        environment=environment.variables,
    )
    source = stored.path if stored else None
    return LaunchPlan(
        name, spec, tuple(decision.reasons), warnings, source, launch, configured.tool_format,
        environment.version, tuple(environment.probe.devices),
    )  # fmt: skip


def _resolve_model_and_engine(
    name: str, configured: ModelConfig, asked: str, config: Config, say: Say
) -> tuple[models.StoredModel | None, EngineDecision]:
    """The stored model and the engine for it; an engine without weights needs no model."""
    if asked != "auto" and not needs_weights(registry.get_spec(asked)):
        return None, EngineDecision(registry.get_spec(asked).kind, (f"asked for by name: {asked}",))
    kinds = [asked] if asked != "auto" else [spec.kind for spec in registry.load_specs().values()]
    with_code = any(config.trusts_remote_code(kind, name) for kind in kinds)
    stored = models.ensure_model(configured.source or name, offline=config.offline, say=say, with_code=with_code)
    return stored, decide_engine_for(stored, asked)


def choose_launch_mode(spec: EngineSpec, settings: Mapping[str, Any]) -> tuple[LaunchMode, int]:
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


def _infer_task(configured: ModelConfig, stored: models.StoredModel | None) -> str:
    """What a model without a head for the next token (BertModel, ...) is for, unless the configuration says otherwise."""
    headless = stored is not None and stored.architecture.endswith("Model")
    return "embed" if headless and "task" not in configured.entries else configured.task


def needs_weights(spec: EngineSpec) -> bool:
    return bool({"gguf", "safetensors"} & set(spec.formats))


def _prepare_model_path(stored: models.StoredModel, spec: EngineSpec, python: Path, say: Say, *, convert: bool) -> Path:
    """The model in a format the engine reads; a GGUF is made dense once for engines that cannot read it."""
    if stored.format in spec.formats:
        return stored.path
    if stored.format == "gguf" and "safetensors" in spec.formats:
        return models.ensure_dense_weights(stored, python, say=say) if convert else stored.path
    raise ConfigError(
        f"{spec.kind} reads {', '.join(spec.formats)}, and {stored.name} is {stored.format}",
        f"see which engine fits with: bay engines why {stored.name}",
    )
