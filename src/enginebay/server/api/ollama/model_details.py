"""GET /api/tags and /api/ps, POST /api/show"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from enginebay.errors import EnginebayError, InvalidRequest
from enginebay.models.model_description import ModelDescription, describe_model
from enginebay.server.api.body_decoder import read_body
from enginebay.server.api.ollama.generation import resolve_model
from enginebay.server.api.ollama.ollama_encoder import format_time
from enginebay.server.api.ollama.schemas import (
    OllamaDetailsObject,
    OllamaModelObject,
    OllamaModelsObject,
    OllamaPullBody,
    OllamaRunningModelObject,
    OllamaRunningModelsObject,
    OllamaShowBody,
    OllamaShowObject,
)
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import add_translation_headers
from enginebay.server.requests.server_context import ServerContext
from enginebay.server.sessions.model_catalog import CatalogEntry, ModelCatalog

_NEVER_S = 292 * 365 * 86400  # what Ollama says of a model that stays: the largest duration it has
_encode = msgspec.json.Encoder().encode


async def list_tags(context: ServerContext, request_context: RequestContext) -> None:
    body = await asyncio.to_thread(_build_list, context.catalog)
    request_context.exchange.respond(200, _encode(body))


def _build_list(catalog: ModelCatalog) -> OllamaModelsObject:
    return OllamaModelsObject([_build_model(catalog, name) for name in catalog.names])


def _build_model(catalog: ModelCatalog, name: str) -> OllamaModelObject:
    entry, _ = catalog.find(name)
    description = describe_files(entry)
    return OllamaModelObject(
        name=name,
        model=name,
        modified_at=format_time(entry.created),
        size=description.size_bytes if description is not None else 0,
        digest=_identify(name),
        details=_build_details(description, entry.name if name != entry.name else ""),
    )


def _identify(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def describe_files(entry: CatalogEntry) -> ModelDescription | None:
    """Describe the model's files, loaded or not; None if it has none on this host. Reads the disk."""
    return _describe_path(entry.route.source) if entry.route.source is not None else None


@lru_cache(maxsize=256)
def _describe_path(path: Path) -> ModelDescription | None:
    try:
        return describe_model(path)
    except (EnginebayError, OSError):
        return None


def _build_details(description: ModelDescription | None, parent: str = "") -> OllamaDetailsObject:
    if description is None:
        return OllamaDetailsObject(parent_model=parent)
    return OllamaDetailsObject(
        parent_model=parent,
        format=description.format,
        family=description.architecture,
        families=[description.architecture],
        parameter_size=_format_parameters(description.parameters),
        quantization_level=description.quantisation,
    )


def _format_parameters(count: int) -> str:
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= unit:
            return f"{count / unit:.1f}{letter}"
    return str(count)


# One model


async def show(context: ServerContext, request_context: RequestContext) -> None:
    body = read_body(OllamaShowBody, context, request_context)
    name = resolve_model(context.catalog, get_name(body))
    entry, _ = context.catalog.find(name)
    request_context.catalog_entry, request_context.model = entry, name
    request_context.labels = (entry.name, entry.primary.kind)
    add_translation_headers(request_context)
    request_context.exchange.respond(200, _encode(await asyncio.to_thread(_build_description, entry, name)))


def get_name(body: OllamaShowBody | OllamaPullBody) -> str:
    """Return the model's name, of which there is an older field."""
    name = body.model or body.name
    if name is None:
        raise InvalidRequest("model is missing", param="model")
    return name


def _build_description(entry: CatalogEntry, name: str) -> OllamaShowObject:
    description, session = describe_files(entry), entry.primary.session
    template = session.client.prompt_encoder.chat_template if session is not None else None
    thinks = session is not None and session.reasoning_format is not None
    defaults = session.sampling_defaults if session is not None else {}
    return OllamaShowObject(
        modelfile=f"# Served by Enginebay. Models are set up in its configuration.\nFROM {name}\n",
        parameters=_format_defaults(defaults),
        template=template or "",
        details=_build_details(description, entry.name if name != entry.name else ""),
        model_info=_build_info(entry, description),
        capabilities=_list_capabilities(entry.route.task, thinks),
        modified_at=format_time(entry.created),
    )


def _format_defaults(defaults: Mapping[str, Any]) -> str:
    names = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}
    return "\n".join(f"{names.get(name, name):<30} {value}" for name, value in defaults.items())


def _build_info(entry: CatalogEntry, description: ModelDescription | None) -> dict[str, Any]:
    """Return facts under GGUF's names, which clients look for. The context is the one it is served with, once known."""
    architecture = description.architecture if description is not None else entry.primary.kind
    info: dict[str, Any] = {"general.architecture": architecture, "general.basename": entry.name}
    if description is not None:
        info["general.parameter_count"] = description.parameters
    facts = entry.primary.facts
    context_length = facts.context_length if facts is not None else None
    if context_length is None and description is not None:
        context_length = description.context_length
    if context_length:
        info[f"{architecture}.context_length"] = context_length
    return info


def _list_capabilities(task: str, thinks: bool) -> Any:
    if task == "embed":
        return ["embedding"]
    return ["completion", "tools", *(["thinking"] if thinks else [])]


# Loaded models


async def list_running(context: ServerContext, request_context: RequestContext) -> None:
    fleet = await context.fleet.run_admin_command("ps", {})
    body = await asyncio.to_thread(_build_running, context.catalog, fleet["models"])
    request_context.exchange.respond(200, _encode(body))


def _build_running(catalog: ModelCatalog, rows: list[dict[str, Any]]) -> OllamaRunningModelsObject:
    """Return the loaded models, each with all of its replicas."""
    by_model: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["state"] == "awake" and row["model"] in catalog.entries:
            by_model.setdefault(row["model"], []).append(row)
    running = [_build_running_model(catalog.entries[name], copies) for name, copies in by_model.items()]
    return OllamaRunningModelsObject(sorted(running, key=lambda model: model.expires_at, reverse=True))


def _build_running_model(entry: CatalogEntry, rows: list[dict[str, Any]]) -> OllamaRunningModelObject:
    facts = entry.primary.facts
    on_gpus = sum(
        needed for row in rows if row["gpus"] for pool, needed in row["needs_bytes"].items() if pool.startswith("gpu")
    )
    memory = sum(row["memory_bytes"] or 0 for row in rows)
    return OllamaRunningModelObject(
        name=entry.name,
        model=entry.name,
        size=max(memory, on_gpus),
        size_vram=on_gpus,
        digest=_identify(entry.name),
        details=_build_details(describe_files(entry)),
        expires_at=format_time(time.time() + min(map(_compute_left_s, rows))),
        context_length=facts.context_length if facts is not None else 0,
    )


def _compute_left_s(row: Mapping[str, Any]) -> float:
    """Return the seconds until it is unloaded, if no request comes."""
    limit = row["idle_limit_s"]
    return _NEVER_S if limit is None or row["pinned"] else max(0.0, limit - (row["idle_s"] or 0.0))
