"""Launch plans: resolve a requested model and engine to everything a worker process needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginebay import environments, models
from enginebay.config.loader import check_settings, list_ineffective_settings, load_config
from enginebay.config.resolved_config import Config, ModelConfig
from enginebay.contract import EngineSpec, Isolation, LaunchMode, Load
from enginebay.engines import registry
from enginebay.engines.effective_spec import apply_probe
from enginebay.errors import ConfigError, EngineMissing, UnknownModel
from enginebay.fleet.engine_selection.engine_resolver import decide_engine_for
from enginebay.fleet.engine_selection.selection_rules import EngineDecision
from enginebay.fleet.lifecycle.worker_logs import get_worker_log_path
from enginebay.fleet.memory.gpu_needs import (
    GpusKey,
    build_device_variables,
    check_gpus,
    derive_gpu_settings,
    find_pins_in_environment,
)
from enginebay.fleet.memory.memory_estimate import supports_cuda
from enginebay.models.adapter_files import check_adapter
from enginebay.models.model_sources import looks_like_source
from enginebay.util.child_processes import interruptible
from enginebay.util.hardware import read_host
from enginebay.util.paths import runtime_dir
from enginebay.worker.client_side.worker_process import WorkerLaunch

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How to start a worker for a model, and why with this engine."""

    model: str
    spec: EngineSpec  # adjusted to the installed version
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    source: Path | None  # the stored model files, for the tokenizer and the chat template
    launch: WorkerLaunch
    tool_format: str = "auto"  # the configured tool call format
    version: str = ""  # of the installed engine
    devices: tuple[str, ...] = ("cpu",)  # supported by the installed library
    allow_special_tokens: bool = False  # in the messages of its chats
    gpus: GpusKey = None  # the configured ones, if the engine uses GPUs
    reasoning_format: str = "auto"  # the configured one


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
    """Resolve the model, choose the engine, find its environment. Download and convert what is missing.

    `engine` is a kind or `KIND==VERSION`; `settings` override the configuration's. With `strict` a retired or
    inapplicable key is an error. Without `convert` no model is converted: the plan is only for display.
    """
    config = config or load_config(None)
    name = model or config.model or models.DEFAULT_MODEL
    configured = config.models.get(name) or ModelConfig(name)
    requested, _, version = (engine or config.engine_for(name)).partition("==")
    if requested != "auto":
        environments.find_environment(requested, version or None)  # raises before a model is downloaded in vain
    stored, decision, task = _resolve_model_and_engine(name, configured, requested, config, task, say)
    config.check_may_leave_host(decision.kind, name)
    environment = environments.find_environment(decision.kind, version or None)
    spec = apply_probe(environment.spec, environment.probe)
    _check_spec(spec, name, task)
    for adapter, adapter_path in configured.loras.items():
        check_adapter(spec, adapter, Path(adapter_path))
    overrides = check_settings(spec, settings or {})
    merged = {**config.settings_for(spec.kind, name), **overrides}
    devices = tuple(environment.probe.devices)
    gpus, unused = _resolve_gpus(spec, configured, devices)
    merged |= derive_gpu_settings(spec, merged, gpus)
    warnings = (
        *unused,
        *map(str, config.warnings_for(spec.kind, name, spec)),
        *list_ineffective_settings(spec, overrides),
    )
    if strict and warnings:
        raise ConfigError(warnings[0], "remove the key, or run without --strict")
    path = _prepare_model_path(stored, spec, environment.python, say, convert=convert) if stored else Path()
    load = Load(
        kind=spec.kind,
        engine=spec.engine,
        model=name,
        path=str(path),
        settings=merged,
        loras=dict(configured.loras),
        task=task,
        trust_remote_code=config.trusts_remote_code(spec.kind, name),
    )
    mode, processes = choose_launch_mode(spec, merged)
    launch = WorkerLaunch(
        load=load,
        python=environment.python,
        runtime_dir=runtime_dir(),
        log=get_worker_log_path(spec.kind, name),
        mode=mode,
        processes=processes,
        environment=environment.variables,
        env_prefixes=spec.env_prefixes,
        variables=select_model_variables(spec, merged, configured, os.environ),
        devices=build_device_variables(read_host().gpus, gpus, gpus) if isinstance(gpus, tuple) else {},
    )
    source = stored.path if stored else None
    return LaunchPlan(
        name, spec, tuple(decision.reasons), warnings, source, launch, configured.tool_format,
        environment.version, devices, configured.allow_special_tokens, gpus, configured.reasoning_format,
    )  # fmt: skip


def _resolve_gpus(
    spec: EngineSpec, configured: ModelConfig, devices: tuple[str, ...]
) -> tuple[GpusKey, tuple[str, ...]]:
    """Return the GPUs that the configuration gives the model, and a warning if its engine uses none."""
    if spec.remote or not supports_cuda(devices):
        unused = f"models.{configured.name}.gpus has no effect: {spec.kind} does not use a GPU on this host"
        return None, () if configured.gpus is None else (unused,)
    if configured.gpus is None and configured.env is None:
        return None, ()
    host = read_host()
    gpus = find_pins_in_environment(configured.env, configured.gpus, host)
    check_gpus(gpus, host)
    return gpus, ()


def _resolve_model_and_engine(
    name: str, configured: ModelConfig, requested: str, config: Config, task: str | None, say: Say
) -> tuple[models.StoredModel | None, EngineDecision, str]:
    """Return the stored model, its engine and its task. An engine without weights needs no model."""
    if requested != "auto" and not registry.get_spec(requested).needs_weights:
        decision = EngineDecision(registry.get_spec(requested).kind, (f"requested by name: {requested}",))
        return None, decision, task or configured.task
    if requested == "auto":
        _check_before_download(configured.source or name)
    kinds = [requested] if requested != "auto" else [spec.kind for spec in registry.load_specs().values()]
    with_code = any(config.trusts_remote_code(kind, name) for kind in kinds)
    stored = models.ensure_model(configured.source or name, offline=config.offline, say=say, with_code=with_code)
    task = task or _infer_task(configured, stored)
    return stored, decide_engine_for(stored, requested, task), task


def select_model_variables(
    spec: EngineSpec, settings: Mapping[str, Any], configured: ModelConfig, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of this model only: its `env:`, and those that settings name, such as one with a key. Pure."""
    named = [
        str(settings[name]) for name, setting in spec.settings.items() if setting.names_variable and settings.get(name)
    ]
    requested = {**dict.fromkeys(named), **(configured.env or {})}
    values = {name: environ.get(name) if value is None else value for name, value in requested.items()}
    return {name: value for name, value in values.items() if value is not None}


def _check_before_download(source: str) -> None:
    """Raise `EngineMissing` if the model would be downloaded and no installed engine could load it."""
    known = models.KNOWN_MODELS.get(source)
    if known is None and not looks_like_source(source):
        return
    with suppress(UnknownModel):
        models.resolve_model(source)
        return
    able = [
        spec.kind
        for spec in registry.load_specs().values()
        if spec.needs_weights and (known is None or spec.reads(known.format))
    ]
    installed = environments.get_installed_engines()
    if not any(installed.get(kind) for kind in able):
        commands = " or ".join(f"`bay engines install {kind}`" for kind in able)
        raise EngineMissing(f"no installed engine can run {source}", f"install one first: {commands}")


def choose_launch_mode(spec: EngineSpec, settings: Mapping[str, Any]) -> tuple[LaunchMode, int]:
    """Return the launcher of an engine and its number of processes. Pure."""
    shards = int(settings.get("sharding.num_shards") or 1)
    strategy = settings.get("sharding.strategy")
    if LaunchMode.TORCHRUN in spec.runtime.launch_modes and strategy == "tensor_parallel" and shards > 1:
        return LaunchMode.TORCHRUN, shards
    launch = settings.get("launch")
    if launch is None:
        return LaunchMode.DIRECT, 1
    mode = LaunchMode(launch)
    if mode not in spec.runtime.launch_modes:
        allowed = ", ".join(allowed_mode.value for allowed_mode in spec.runtime.launch_modes)
        raise ConfigError(f"{spec.kind} cannot be launched by {mode.value}", f"set launch to one of: {allowed}")
    return mode, shards


def _check_spec(spec: EngineSpec, model: str, task: str) -> None:
    if task not in spec.tasks:
        raise ConfigError(
            f"{spec.kind} does not support the task {task} of {model}; it supports {', '.join(spec.tasks)}",
            "choose another engine: `bay engines matrix` compares them",
        )
    if spec.isolation is not Isolation.PROCESS:
        raise ConfigError(
            f"{spec.kind} declares isolation {spec.isolation}, which this version does not support",
            "choose another engine, or upgrade enginebay",
        )


def _infer_task(configured: ModelConfig, stored: models.StoredModel) -> str:
    """Return the configured task; `embed` is the default for models without a language-model head (BertModel, ...)."""
    headless = stored.architecture.endswith("Model")
    return "embed" if headless and "task" not in configured.entries else configured.task


def _prepare_model_path(stored: models.StoredModel, spec: EngineSpec, python: Path, say: Say, *, convert: bool) -> Path:
    """Return the model in a format the engine reads. Dequantize a GGUF once for engines that cannot read it."""
    if stored.format in spec.formats:
        return stored.path
    if spec.conversions.get(stored.format) == "safetensors":
        return models.ensure_dense_weights(stored, python, say=say) if convert else stored.path
    raise ConfigError(
        f"{spec.kind} reads {', '.join(spec.formats)}, but {stored.name} is {stored.format}",
        f"to find an engine that fits, run: bay engines why {stored.name}",
    )
