"""Request bodies: msgspec's schemas of the structs, made precise where a struct leaves an object open."""

from __future__ import annotations

from typing import Any

import msgspec

from enginebay.config.sections.server_section import ServerLimits
from enginebay.server.api.admin import schemas as admin_schemas
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
)
# They name models by engine, loaded or not, and no adapters: other names than clients ask for.
_ADMIN_BODIES = frozenset(body.__name__ for body in BODIES if body.__module__ == schemas.__name__)

# (body, field): the schema's keyword that a configured limit sets, and which limit. The field may be a list or a union.
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
    """All schemas of request bodies by name. Without models, any name is allowed."""
    _, components = msgspec.json.schema_components(BODIES, ref_template="#/components/schemas/{name}")
    for name, schema in components.items():
        for field in schema.get("properties", {}):
            schema["properties"][field] = _build_field(name, field, schema["properties"][field], limits)
        names = embedders if name == "EmbeddingBody" else models
        if "model" in schema.get("properties", {}) and names and name not in _ADMIN_BODIES:
            schema["properties"]["model"] = {
                "description": FIELD_DESCRIPTIONS["model"],
                "type": "string",
                **enum(*names),
            }
        schema.update(BODY_RULES.get(name, {}))
    return {**components, **INPUT_COMPONENTS}


def _build_field(body: str, field: str, schema: Schema, limits: ServerLimits) -> Schema:
    meaning = _describe_field(body, field, schema)
    precise = FIELD_SCHEMAS.get((body, field)) or FIELD_SCHEMAS.get(("*", field))
    if precise is not None:
        may_be_null = NULL in schema.get("anyOf", ())
        schema = {"anyOf": [*_list_alternatives(precise), NULL], "default": None} if may_be_null else dict(precise)
    keyword, limit = _LIMIT_KEYWORDS.get((body, field)) or _LIMIT_KEYWORDS.get(("*", field)) or ("", "")
    value = getattr(limits, limit) if limit else None
    if value is not None:
        schema = _apply_limit(schema, keyword, value)
    return {"description": meaning, **schema} if meaning else schema


def _list_alternatives(schema: Schema) -> list[Schema]:
    alternatives: list[Schema] = schema.get("anyOf", [schema])
    return alternatives


def _describe_field(body: str, field: str, schema: Schema) -> str:
    """Ours, else the description that the struct has somewhere in the field."""
    own = FIELD_DESCRIPTIONS.get(f"{body}.{field}") or FIELD_DESCRIPTIONS.get(field)
    found = (one.pop("description", "") for one in (schema, *schema.get("anyOf", ())))
    inner = next((text for text in list(found) if text), "")
    return own or inner


def _apply_limit(schema: Schema, keyword: str, value: Any) -> Schema:
    """The limit, on the alternative that has the right type."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_apply_limit(one, keyword, value) for one in schema["anyOf"]]}
    if schema.get("type") != _KEYWORD_TYPES[keyword]:
        return schema
    return {**schema, keyword: min(value, schema.get(keyword, value))}
