"""What could be loaded: each model on its engine, and on the engines it falls back to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from enginebay.config.resolved_config import Config, ModelConfig
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


@dataclass(frozen=True, slots=True)
class Variant:
    """One model on one engine. The first of a model has the model's name, its fallbacks are called MODEL@ENGINE."""

    name: str
    model: str
    kind: str
    plan: LaunchPlan | None  # None: it could not be made, and `error` says why
    error: EnginebayError | None = None
    settings: ModelConfig = field(default_factory=lambda: ModelConfig(""))
    sampling: Mapping[str, Any] = field(default_factory=dict)  # the configuration's request defaults
    idle_s: float | None = None
    sleep: str | int = "auto"

    @property
    def primary(self) -> bool:
        """Whether it is the one that requests are sent to before any other."""
        return self.name == self.model


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """A model as clients may ask for it, loaded or not. Crosses the border between the server's processes."""

    model: str
    variants: tuple[str, ...]  # in the order in which they are tried
    kinds: tuple[str, ...]
    loras: tuple[str, ...] = ()
    fallback_on: tuple[str, ...] = ()  # what makes a request fall back
    task: str = "generate"
    load_at_start: bool = True  # it is to be loaded whenever the server runs


def build_variants(
    config: Config,
    names: Iterable[str | None],
    *,
    engine: str | None = None,
    settings: Mapping[str, Any] | None = None,
    strict: bool = False,
    say: Say = lambda _: None,
) -> list[Variant]:
    """Plans for all models and their fallbacks. Raises what the first one says when a model has no fallback."""
    found: list[Variant] = []
    for name in dict.fromkeys(names):
        first = _build_variant(config, name, engine, settings, strict, say, may_fail=_has_fallback(config, name))
        found.append(first)
        for kind in config.fallback_for(first.model, first.kind):
            found.append(_build_variant(config, first.model, kind, None, strict, say, may_fail=True, as_fallback=True))
    return found


def build_routes(variants: Iterable[Variant]) -> tuple[ModelRoute, ...]:
    by_model: dict[str, list[Variant]] = {}
    for one in variants:
        by_model.setdefault(one.model, []).append(one)
    return tuple(_build_route(model, chain) for model, chain in by_model.items())


def _build_route(model: str, chain: list[Variant]) -> ModelRoute:
    loads = [one.plan.launch.load for one in chain if one.plan is not None]
    return ModelRoute(
        model=model,
        variants=tuple(one.name for one in chain),
        kinds=tuple(one.kind for one in chain),
        loras=tuple(chain[0].settings.loras),
        fallback_on=chain[0].settings.fallback_on,
        task=loads[0].task if loads else chain[0].settings.task,
        load_at_start=chain[0].settings.load == "start" or chain[0].settings.pinned,
    )


def _has_fallback(config: Config, name: str | None) -> bool:
    return name is not None and bool(config.fallback_for(name))


def _build_variant(
    config: Config, name: str | None, engine: str | None, settings: Mapping[str, Any] | None, strict: bool, say: Say,
    *, may_fail: bool, as_fallback: bool = False,
) -> Variant:  # fmt: skip
    model = name or config.model or ""
    known = config.models.get(model, ModelConfig(model))
    asked = engine or config.engine_for(model)
    own = f"{model}@{asked}" if as_fallback else model
    idle_s, sleep = config.idle_s_for(model), config.sleep_for(model)
    try:
        plan = make_launch_plan(name, engine=asked, config=config, settings=settings, strict=strict, say=say)
    except EnginebayError as error:
        if not may_fail:
            if model in config.models:
                error.message = f"{model}: {error.message}"
            raise
        return Variant(own, model, asked.partition("==")[0], None, _to_client_error(error), known, {}, idle_s, sleep)
    sampling = config.sampling_for(plan.spec.kind, plan.model)
    return Variant(own or plan.model, plan.model, plan.spec.kind, plan, None, known, sampling, idle_s, sleep)


def _to_client_error(error: EnginebayError) -> EnginebayError:
    """As clients meet it: that this host has no such model, or none that this engine runs, is no fault of theirs. Pure."""
    if isinstance(error, UnknownModel):
        return FetchFailed(error.message, error.hint)
    if isinstance(error, UsageError) and not isinstance(error, (ConfigError, UnknownEngine)):
        return UnknownArchitecture(error.message, error.hint)
    return error
