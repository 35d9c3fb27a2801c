"""The models of this server in Anthropic's form. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from enginebay.errors import InvalidRequest
from enginebay.server.api.anthropic.message_objects import AnthropicModelListObject, AnthropicModelObject
from enginebay.server.sessions.model_catalog import ModelCatalog

_DEFAULT_LIMIT, _MAX_LIMIT = 20, 1000


def build_anthropic_model(catalog: ModelCatalog, name: str) -> AnthropicModelObject:
    entry, _ = catalog.find(name)
    facts = entry.primary.facts  # None until the first load
    context_length = facts.context_length or None if facts is not None else None
    created = datetime.fromtimestamp(entry.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return AnthropicModelObject(
        id=name, display_name=name, created_at=created, max_input_tokens=context_length, max_tokens=context_length
    )


def list_anthropic_models(catalog: ModelCatalog, query: Mapping[str, str]) -> AnthropicModelListObject:
    """Return the page of models that the query asks for."""
    names, has_more = _select_page(catalog.names, query)
    return AnthropicModelListObject(
        data=[build_anthropic_model(catalog, name) for name in names],
        has_more=has_more,
        first_id=names[0] if names else None,
        last_id=names[-1] if names else None,
    )


def _select_page(names: list[str], query: Mapping[str, str]) -> tuple[list[str], bool]:
    """Return the names of the page, and whether more follow in its direction."""
    limit = _read_limit(query.get("limit"))
    if "before_id" in query:
        before = names[: _find(names, query, "before_id")]
        return before[-limit:], len(before) > limit
    after = names[_find(names, query, "after_id") + 1 :] if "after_id" in query else names
    return after[:limit], len(after) > limit


def _read_limit(text: str | None) -> int:
    if text is None:
        return _DEFAULT_LIMIT
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= _MAX_LIMIT:
        raise InvalidRequest(f"limit is {text[:40]!r}", f"use an integer from 1 to {_MAX_LIMIT}", param="limit")
    return int(text)


def _find(names: list[str], query: Mapping[str, str], param: str) -> int:
    name = query[param]
    if name not in names:
        raise InvalidRequest(f"{param} is {name[:100]!r}, which is not a model of this server", param=param)
    return names.index(name)
