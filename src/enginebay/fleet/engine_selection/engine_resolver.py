"""Chooses the engine for a model on this host: gathers facts and applies the selection rules."""

from __future__ import annotations

from enginebay.engines import registry
from enginebay.environments import get_installed_engines
from enginebay.fleet.engine_selection import tuned_engines
from enginebay.fleet.engine_selection.selection_rules import (
    EngineDecision,
    MeasuredPreference,
    ModelFacts,
    list_candidates,
    select_engine,
)
from enginebay.models import StoredModel, resolve_model
from enginebay.util.hardware import HostFacts, read_host

_DENSE_BYTES_PER_PARAMETER = 2  # 16 bits


def decide_engine(model: str, requested: str | None = None) -> EngineDecision:
    """Choose the engine for a stored model by its name."""
    return decide_engine_for(resolve_model(model), requested)


def decide_engine_for(stored: StoredModel, requested: str | None = None, task: str = "generate") -> EngineDecision:
    """Choose the engine for a stored model. `requested`: a kind or alias, "auto" or None.

    With "auto" or None, measurements of `bay choose` for this model on this host come first.
    """
    facts, host = _build_model_facts(stored, task), read_host()
    if requested and requested != "auto":
        kind = registry.get_spec(requested).kind
        return select_engine(facts, host, registry.load_specs(), get_installed_engines(), kind)
    measured, notes = _load_measured_preference(stored, host)
    return select_engine(facts, host, registry.load_specs(), get_installed_engines(), None, measured, notes)


def list_candidates_for(stored: StoredModel) -> tuple[list[str], dict[str, str]]:
    """Return the installed engines that can run a stored model, and why the others cannot."""
    return list_candidates(_build_model_facts(stored), read_host(), registry.load_specs(), get_installed_engines())


def _load_measured_preference(
    stored: StoredModel, host: HostFacts
) -> tuple[MeasuredPreference | None, tuple[str, ...]]:
    lookup = tuned_engines.find(stored, host)
    tuned = lookup.tuned
    if tuned is None:
        return None, lookup.ignored
    return MeasuredPreference(tuned.engine, tuned.best.version, tuned_engines.format_summary(tuned), tuned.date), ()


def _build_model_facts(stored: StoredModel, task: str = "generate") -> ModelFacts:
    dense_bytes = stored.parameters * _DENSE_BYTES_PER_PARAMETER if stored.parameters else None
    return ModelFacts(stored.format, stored.architecture, stored.name, dense_bytes, task)
