"""Builds the model objects of /v1/models: list entries, and details with capabilities and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from msgspec import UNSET

from enginebay.contract import Support
from enginebay.fleet.scheduling.wait_estimate import WaitEstimate
from enginebay.server.api.openai.response_objects import (
    CapabilityObject,
    ModelDescriptionObject,
    ModelDetailsObject,
    ModelObject,
    SettingObject,
    Task,
)
from enginebay.server.sessions.model_catalog import CatalogEntry, ModelCatalog
from enginebay.text.reasoning import NO_REASONING

_PATH = re.compile(r"(?<![\w:/.])~?/[^\s,;:'\"]+")  # a file path; not the slash in "tokens/s", nor a URL


def list_model_objects(catalog: ModelCatalog) -> list[ModelObject]:
    return [ModelObject(**_build_fields(catalog, name)) for name in catalog.names]


def _build_fields(catalog: ModelCatalog, name: str) -> dict[str, Any]:
    entry, lora = catalog.find(name)
    facts = entry.primary.facts  # None until the first load
    context_length = facts.context_length or None if facts is not None else None
    parent = entry.name if lora else UNSET
    return {"id": name, "created": entry.created, "max_model_len": context_length, "parent": parent}


def build_model_details(catalog: ModelCatalog, name: str, estimate: WaitEstimate) -> ModelDescriptionObject:
    """Return the model object with capabilities, and effective settings next to the configured ones."""
    entry, _ = catalog.find(name)
    route = entry.route
    details = ModelDetailsObject(
        state=estimate.state,
        engine=route.kinds[0],
        fallback=list(route.kinds[1:]),
        task=cast("Task", route.task),
        adapters=list(route.loras),
        **_build_worker_details(entry),
    )
    return ModelDescriptionObject(**_build_fields(catalog, name), enginebay=details)


def _build_worker_details(entry: CatalogEntry) -> dict[str, Any]:
    """Return what the current worker reports, or the last one; {} before the first load."""
    session = entry.primary.session
    if session is None:
        return {}
    facts = session.client.facts
    capabilities = {
        parameter: CapabilityObject(capability.support.value, capability.detail)
        for parameter, capability in session.client.spec.request.items()
    }
    for parameter, reason in facts.refused.items():
        capabilities[parameter] = CapabilityObject(Support.REFUSES.value, reason)
    settings = {
        setting: SettingObject(*map(redact_paths, (facts.effective.get(setting), facts.asked.get(setting))))
        for setting in sorted({*facts.effective, *facts.asked})
    }
    return {
        "version": facts.version,
        "context_length": facts.context_length,
        "max_batch": facts.max_batch,
        "memory_bytes": facts.memory_bytes,
        "load_s": facts.load_s,
        "capabilities": capabilities,
        "settings": settings,
        "sampling_defaults": session.sampling_defaults,
        "tool_format": session.tool_format.name,
        "reasoning_format": session.reasoning_format.name if session.reasoning_format else NO_REASONING,
        "warnings": redact_paths(facts.warnings),
    }


def redact_paths(value: Any) -> Any:
    """Replace the paths of this host's files in settings and warnings."""
    if isinstance(value, str):
        return _PATH.sub("(a path)", value)
    if isinstance(value, Mapping):
        return {name: redact_paths(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_paths(item) for item in value]
    return value
