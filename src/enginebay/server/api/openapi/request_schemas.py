"""Request body schemas: msgspec's schemas of the structs, with overrides for open objects and configured limits."""

from __future__ import annotations

from typing import Any

import msgspec

from enginebay.config.sections.server_section import ServerLimits
from enginebay.server.api.admin import schemas as admin_schemas
from enginebay.server.api.ollama import schemas as ollama_schemas
from enginebay.server.api.openai import schemas
from enginebay.server.api.openapi.request_overrides import (
    BODY_RULES,
    FIELD_DESCRIPTIONS,
    FIELD_SCHEMAS,
    INPUT_COMPONENTS,
)
from enginebay.server.api.openapi.schema_builders import NULL, Schema, enum

BODIES = (
    schemas.ChatBody,
    schemas.CompletionBody,
    schemas.EmbeddingBody,
    schemas.ResponsesBody,
    schemas.TokenizeBody,
    schemas.DetokenizeBody,
    admin_schemas.ModelBody,
    admin_schemas.SwitchBody,
    admin_schemas.AdapterBody,
    admin_schemas.AdapterNameBody,
    admin_schemas.UpgradeBody,
    ollama_schemas.OllamaChatBody,
    ollama_schemas.OllamaGenerateBody,
    ollama_schemas.OllamaEmbedBody,
    ollama_schemas.OllamaEmbeddingsBody,
    ollama_schemas.OllamaShowBody,
    ollama_schemas.OllamaPullBody,
)
# Their models are variants (MODEL@ENGINE), not the names that clients use.
_ADMIN_BODIES = frozenset(body.__name__ for body in BODIES if body.__module__ == admin_schemas.__name__)
_ANY_MODEL = _ADMIN_BODIES | {"OllamaPullBody"}
EMBEDDING_BODIES = frozenset({"EmbeddingBody", "OllamaEmbedBody", "OllamaEmbeddingsBody"})
_NESTED = (ollama_schemas.OllamaOptions,)  # decoded apart from their bodies

# (body, field): the schema keyword that a configured limit sets, and the limit.
_LIMIT_KEYWORDS = {
    ("*", "n"): ("maximum", "n"),
    ("*", "best_of"): ("maximum", "n"),
    ("*", "stop"): ("maxItems", "stop"),
    ("*", "stop_token_ids"): ("maxItems", "stop"),
    ("*", "logit_bias"): ("maxProperties", "logit_bias"),
    ("*", "tools"): ("maxItems", "tools"),
    ("*", "guided_choice"): ("maxItems", "choices"),
    ("*", "max_tokens"): ("maximum", "max_tokens"),
    ("*", "max_completion_tokens"): ("maximum", "max_tokens"),
    ("*", "max_output_tokens"): ("maximum", "max_tokens"),
    ("ChatBody", "messages"): ("maxItems", "messages"),
    ("ResponsesBody", "input"): ("maxItems", "messages"),
}
_KEYWORD_TYPES = {"maximum": "integer", "maxItems": "array", "maxProperties": "object"}


def build_request_schemas(
    limits: ServerLimits, models: tuple[str, ...], embedders: tuple[str, ...]
) -> dict[str, Schema]:
    """Return all request body schemas by name. Without models, any model name is allowed."""
    _, components = msgspec.json.schema_components((*BODIES, *_NESTED), ref_template="#/components/schemas/{name}")
    for name, schema in components.items():
        properties = schema.get("properties", {})
        for field in properties:
            properties[field] = _build_field(name, field, properties[field], limits)
        names = embedders if name in EMBEDDING_BODIES else models
        if "model" in properties and names and name not in _ANY_MODEL:
            properties["model"] = {"description": FIELD_DESCRIPTIONS["model"], "type": "string", **enum(*names)}
        schema.update(BODY_RULES.get(name, {}))
    for struct in _NESTED:
        del components[struct.__name__]["additionalProperties"]  # unknown ones are ignored by name
    return {**components, **INPUT_COMPONENTS}


def _build_field(body: str, field: str, schema: Schema, limits: ServerLimits) -> Schema:
    description = _describe_field(body, field, schema)
    override = FIELD_SCHEMAS.get((body, field)) or FIELD_SCHEMAS.get(("*", field))
    if override is not None:
        is_nullable = NULL in schema.get("anyOf", ())
        schema = {"anyOf": [*_list_alternatives(override), NULL], "default": None} if is_nullable else dict(override)
    keyword, limit = _LIMIT_KEYWORDS.get((body, field)) or _LIMIT_KEYWORDS.get(("*", field)) or ("", "")
    value = getattr(limits, limit) if limit else None
    if value is not None:
        schema = _apply_limit(schema, keyword, value)
    return {"description": description, **schema} if description else schema


def _list_alternatives(schema: Schema) -> list[Schema]:
    alternatives: list[Schema] = schema.get("anyOf", [schema])
    return alternatives


def _describe_field(body: str, field: str, schema: Schema) -> str:
    """Return the description in FIELD_DESCRIPTIONS, else the struct's own."""
    own = FIELD_DESCRIPTIONS.get(f"{body}.{field}") or FIELD_DESCRIPTIONS.get(field)
    inner = [alternative.pop("description", "") for alternative in (schema, *schema.get("anyOf", ()))]
    return own or next((text for text in inner if text), "")


def _apply_limit(schema: Schema, keyword: str, value: Any) -> Schema:
    """Set the limit on the alternative of the right type."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_apply_limit(alternative, keyword, value) for alternative in schema["anyOf"]]}
    if schema.get("type") != _KEYWORD_TYPES[keyword]:
        return schema
    return {**schema, keyword: min(value, schema.get(keyword, value))}
