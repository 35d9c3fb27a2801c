"""Variants: each configured model on its engine and on the engines it falls back to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginebay.config.resolved_config import Config, ModelConfig
from enginebay.config.sections.replica_policy import ReplicaPolicy
from enginebay.contract import MemoryEstimate
from enginebay.errors import (
    ConfigError,
    EnginebayError,
    FetchFailed,
    UnknownArchitecture,
    UnknownEngine,
    UnknownModel,
    UsageError,
)
from enginebay.fleet.lifecycle.launch_plan import LaunchPlan, Say, make_launch_plan
from enginebay.fleet.memory.gpu_needs import build_gpu_need, check_pinned, find_clashes, list_gpu_capacity
from enginebay.fleet.memory.memory_estimate import estimate_memory, gather_memory_facts
from enginebay.fleet.scheduling.device_placement import GpuNeed
from enginebay.util.hardware import read_host


@dataclass(frozen=True, slots=True)
class Variant:
    """One model on one engine. The primary has the model's name, its fallbacks are named MODEL@ENGINE."""

    name: str
    model: str
    kind: str
    plan: LaunchPlan | None  # None: see `error`
    error: EnginebayError | None = None
    settings: ModelConfig = field(default_factory=lambda: ModelConfig(""))
    sampling: Mapping[str, Any] = field(default_factory=dict)  # the configuration's request defaults
    idle_s: float | None = None
    sleep: str | int = "auto"
    memory: MemoryEstimate = field(default_factory=lambda: MemoryEstimate({}))
    gpu_need: GpuNeed | None = None  # None: it uses no GPU
    resume: bool = True  # see `ModelRoute`

    @property
    def max_replicas(self) -> int:
        """How many copies may run. One process is enough for an engine on another host."""
        return 1 if self.plan is None or self.plan.spec.remote else self.replica_policy.maximum

    @property
    def replica_policy(self) -> ReplicaPolicy:
        return self.settings.replicas or ReplicaPolicy()

    @property
    def primary(self) -> bool:
        """Whether requests try it first."""
        return self.name == self.model


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """A model as clients request it, loaded or not. Crosses the server's process boundary."""

    model: str
    variants: tuple[str, ...]  # in fallback order
    kinds: tuple[str, ...]
    loras: tuple[str, ...] = ()
    fallback_on: tuple[str, ...] = ()  # fallback triggers: see `classify_fallback_trigger`
    task: str = "generate"
    load_at_start: bool = True
    resume: bool = True  # continue a response on another worker when its own dies
    source: Path | None = None  # its files on this host


def build_variants(
    config: Config,
    names: Iterable[str | None],
    *,
    engine: str | None = None,
    settings: Mapping[str, Any] | None = None,
    strict: bool = False,
    say: Say = lambda _: None,
) -> list[Variant]:
    """Plan all models and their fallbacks. A planning error is raised only if the model has no fallback."""
    variants: list[Variant] = []
    for name in dict.fromkeys(names):
        first = _build_variant(config, name, engine, settings, strict, say, may_fail=_has_fallback(config, name))
        variants.append(first)
        for kind in config.fallback_for(first.model, first.kind):
            fallback = _build_variant(config, first.model, kind, None, strict, say, may_fail=True, as_fallback=True)
            variants.append(fallback)
    pinned = [variant for variant in variants if variant.settings.pinned and variant.primary]
    if needs := _list_gpu_needs(pinned, copies=True):
        check_pinned(needs, _list_gpu_capacity(config))
    return variants


def find_gpu_clashes(variants: Iterable[Variant], config: Config) -> list[str]:
    """Return a line for every two models whose configured GPUs cannot hold both."""
    needs = _list_gpu_needs(variants)
    return find_clashes(needs, _list_gpu_capacity(config)) if needs else []


def _list_gpu_needs(variants: Iterable[Variant], *, copies: bool = False) -> dict[str, GpuNeed]:
    """Return what each model needs. `copies`: of each replica that is always there."""
    return {
        variant.name if number == 1 else f"{variant.name}#{number}": variant.gpu_need
        for variant in variants
        for number in range(1, (max(1, variant.replica_policy.minimum) if copies else 1) + 1)
        if variant.gpu_need is not None
    }


def _list_gpu_capacity(config: Config) -> dict[str, int]:
    host = read_host()
    return list_gpu_capacity(host.gpus, host.memory_bytes, config.fleet.gpu_memory_bytes)


def build_routes(variants: Iterable[Variant]) -> tuple[ModelRoute, ...]:
    by_model: dict[str, list[Variant]] = {}
    for variant in variants:
        by_model.setdefault(variant.model, []).append(variant)
    return tuple(_build_route(model, chain) for model, chain in by_model.items())


def _build_route(model: str, chain: list[Variant]) -> ModelRoute:
    loads = [variant.plan.launch.load for variant in chain if variant.plan is not None]
    return ModelRoute(
        model=model,
        variants=tuple(variant.name for variant in chain),
        kinds=tuple(variant.kind for variant in chain),
        loras=tuple(chain[0].settings.loras),
        fallback_on=chain[0].settings.fallback_on,
        task=loads[0].task if loads else chain[0].settings.task,
        load_at_start=chain[0].settings.load == "start" or chain[0].settings.pinned,
        resume=chain[0].resume,
        source=chain[0].plan.source if chain[0].plan is not None else None,
    )


def _has_fallback(config: Config, name: str | None) -> bool:
    return name is not None and bool(config.fallback_for(name))


def _build_variant(
    config: Config, name: str | None, engine: str | None, settings: Mapping[str, Any] | None, strict: bool, say: Say,
    *, may_fail: bool, as_fallback: bool = False,
) -> Variant:  # fmt: skip
    model = name or config.model or ""
    model_config = config.models.get(model, ModelConfig(model))
    requested = engine or config.engine_for(model)
    variant_name = f"{model}@{requested}" if as_fallback else model
    idle_s, sleep = config.idle_s_for(model), config.sleep_for(model)
    try:
        plan = make_launch_plan(name, engine=requested, config=config, settings=settings, strict=strict, say=say)
        host = read_host()
        facts = gather_memory_facts(plan.launch.load, host, plan.devices, plan.gpus)
        memory = estimate_memory(plan.spec, facts, plan.launch.python)
        gpu_need = build_gpu_need(memory, plan.gpus, host)
    except EnginebayError as error:
        if not may_fail:
            if model in config.models:
                error.message = f"{model}: {error.message}"
            raise
        kind = requested.partition("==")[0]
        return Variant(
            variant_name, model, kind, None, _to_client_error(error), model_config, {}, idle_s, sleep,
            resume=config.resume_for(model),
        )  # fmt: skip
    idle_s = _apply_replica_policy(idle_s, model_config, plan)
    sampling = config.sampling_for(plan.spec.kind, plan.model)
    name, resume = variant_name or plan.model, config.resume_for(model)
    return Variant(
        name, plan.model, plan.spec.kind, plan, None, model_config, sampling, idle_s, sleep, memory, gpu_need, resume
    )


def _apply_replica_policy(idle_s: float | None, settings: ModelConfig, plan: LaunchPlan) -> float | None:
    """Return when an idle model of at most one replica is unloaded; of several, the scaler decides."""
    policy = settings.replicas
    if policy is None or policy.is_fixed or (policy.maximum > 1 and not plan.spec.remote):
        return idle_s
    return policy.idle_s if policy.minimum == 0 else None


def _to_client_error(error: EnginebayError) -> EnginebayError:
    """Turn usage errors into server-side ones: a missing or unsupported model is not the client's fault. Pure."""
    if isinstance(error, UnknownModel):
        return FetchFailed(error.message, error.hint)
    if isinstance(error, UsageError) and not isinstance(error, (ConfigError, UnknownEngine)):
        return UnknownArchitecture(error.message, error.hint)
    return error
