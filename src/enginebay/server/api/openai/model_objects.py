"""What clients are told of a model: its entry in the list, what it can do, and how it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from enginebay.contract import Support
from enginebay.fleet.scheduling.wait_estimate import WaitEstimate
from enginebay.server.sessions.model_catalog import CatalogEntry, ModelCatalog

_PATH = re.compile(r"(?<![\w:/.])~?/[^\s,;:'\"]+")  # of a file; not the slash in "tokens/s", nor an address


def list_model_objects(catalogue: ModelCatalog) -> list[dict[str, Any]]:
    return [build_model_object(catalogue, name) for name in catalogue.names]


def build_model_object(catalogue: ModelCatalog, name: str) -> dict[str, Any]:
    offer, lora = catalogue.find(name)
    facts = offer.primary.facts
    found: dict[str, Any] = {"id": name, "object": "model", "created": offer.created, "owned_by": "enginebay"}
    found["max_model_len"] = (
        facts.context_length or None if facts is not None else None
    )  # not known before it is loaded
    return {**found, "parent": offer.name} if lora else found


def build_model_details(catalogue: ModelCatalog, name: str, outlook: WaitEstimate) -> dict[str, Any]:
    """What this model can do and how it runs, next to what was asked for."""
    offer, _ = catalogue.find(name)
    offering = offer.offering
    found: dict[str, Any] = {
        "state": outlook.state,
        "engine": offering.kinds[0],
        "fallback": list(offering.kinds[1:]),
        "task": offering.task,
        "adapters": list(offering.loras),
    }
    return {**build_model_object(catalogue, name), "enginebay": {**found, **_build_worker_details(offer)}}


def _build_worker_details(offer: CatalogEntry) -> dict[str, Any]:
    """What only a worker tells: of the one that runs, or the last one that did."""
    model = offer.primary.session
    if model is None:
        return {}
    facts = model.client.facts
    capabilities = {
        parameter: {"support": capability.support.value, "detail": capability.detail}
        for parameter, capability in model.client.spec.request.items()
    }
    for parameter, why in facts.refused.items():
        capabilities[parameter] = {"support": Support.REFUSES.value, "detail": why}
    shown_settings = {
        setting: {"effective": facts.effective.get(setting), "asked": facts.asked.get(setting)}
        for setting in sorted({*facts.effective, *facts.asked})
    }
    return {
        "version": facts.version,
        "context_length": facts.context_length,
        "max_batch": facts.max_batch,
        "memory_bytes": facts.memory_bytes,
        "load_s": facts.load_s,
        "capabilities": capabilities,
        "settings": redact_paths(shown_settings),
        "sampling_defaults": model.sampling_defaults,
        "tool_format": model.tool_format.name,
        "warnings": redact_paths(facts.warnings),
    }


def redact_paths(value: Any) -> Any:
    """Settings and warnings may name files of this host: those stay here."""
    if isinstance(value, str):
        return _PATH.sub("(a path)", value)
    if isinstance(value, Mapping):
        return {name: redact_paths(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_paths(one) for one in value]
    return value
