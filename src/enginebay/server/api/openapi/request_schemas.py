"""Request body schemas: msgspec's schemas of the structs, with overrides for open objects and configured limits."""

from __future__ import annotations

from typing import Any

import msgspec

from enginebay.config.sections.server_section import ServerLimits
from enginebay.server.api.admin import schemas as admin_schemas
from enginebay.server.api.anthropic.schemas import CountTokensBody, MessagesBody
from enginebay.server.api.fields.field_rules import FieldRule, Treatment
from enginebay.server.api.fields.field_table import FIELD_TABLE, STRICT_OBJECTS
from enginebay.server.api.fields.unknown_fields import list_fields
from enginebay.server.api.ollama import schemas as ollama_schemas
from enginebay.server.api.openai import schemas
from enginebay.server.api.openai.responses_api import state_schemas
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
    MessagesBody,
    CountTokensBody,
    state_schemas.CompactBody,
    state_schemas.ConversationBody,
    state_schemas.ConversationUpdateBody,
    state_schemas.ConversationItemsBody,
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


def _collect_rules() -> dict[tuple[str, str], FieldRule]:
    """Return the rules by schema and field; those of a nested field by the schema of its object."""
    rules = {}
    for body in BODIES:
        rule_set = FIELD_TABLE.get(body.__name__)
        for rule in rule_set.rules.values() if rule_set is not None else ():
            outer, _, field = rule.name.rpartition(".")
            struct = list_fields(body)[outer] if outer else body
            assert struct is not None
            rules[struct.__name__, field] = rule
    return rules


_RULES = _collect_rules()
_BODIES_WITH_RULES = {name for name, _ in _RULES}

# (body, field): the schema keyword that a configured limit sets, and the limit.
_LIMIT_KEYWORDS = {
    ("*", "n"): ("maximum", "n"),
    ("*", "best_of"): ("maximum", "n"),
    ("*", "stop"): ("maxItems", "stop"),
    ("*", "stop_sequences"): ("maxItems", "stop"),
    ("*", "stop_token_ids"): ("maxItems", "stop"),
    ("*", "logit_bias"): ("maxProperties", "logit_bias"),
    ("*", "tools"): ("maxItems", "tools"),
    ("*", "guided_choice"): ("maxItems", "choices"),
    ("*", "max_tokens"): ("maximum", "max_tokens"),
    ("*", "max_completion_tokens"): ("maximum", "max_tokens"),
    ("*", "max_output_tokens"): ("maximum", "max_tokens"),
    ("ChatBody", "messages"): ("maxItems", "messages"),
    ("MessagesBody", "messages"): ("maxItems", "messages"),
    ("CountTokensBody", "messages"): ("maxItems", "messages"),
    ("ResponsesBody", "input"): ("maxItems", "messages"),
}
_KEYWORD_TYPES = {"maximum": "integer", "maxItems": "array", "maxProperties": "object"}


def build_request_schemas(
    limits: ServerLimits, models: tuple[str, ...], embedders: tuple[str, ...], unknown_fields: str
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
        if unknown_fields == "ignore" and name not in _ADMIN_BODIES | STRICT_OBJECTS:
            schema.pop("additionalProperties", None)
    for struct in _NESTED:
        components[struct.__name__].pop("additionalProperties", None)  # unknown ones are ignored by name
    return {**components, **INPUT_COMPONENTS}


def _build_field(body: str, field: str, schema: Schema, limits: ServerLimits) -> Schema:
    description = _describe_field(body, field, schema)
    rule = _RULES.get((body, field))
    if rule is not None:
        description = f"{description} {rule.description}" if rule.depends and description else rule.description
    schema = _build_field_schema(body, field, schema, limits, rule)
    treatment = {"x-enginebay-treatment": (rule.treatment if rule else Treatment.HONOURED).value}
    return {"description": description, **schema, **(treatment if body in _BODIES_WITH_RULES else {})}


def _build_field_schema(body: str, field: str, schema: Schema, limits: ServerLimits, rule: FieldRule | None) -> Schema:
    if rule is not None and rule.treatment is Treatment.REFUSED:
        return {**enum(*rule.neutral, None), "default": None}
    override = FIELD_SCHEMAS.get((body, field)) or FIELD_SCHEMAS.get(("*", field))
    if override is not None:
        is_nullable = NULL in schema.get("anyOf", ())
        schema = {"anyOf": [*_list_alternatives(override), NULL], "default": None} if is_nullable else dict(override)
    keyword, limit = _LIMIT_KEYWORDS.get((body, field)) or _LIMIT_KEYWORDS.get(("*", field)) or ("", "")
    value = getattr(limits, limit) if limit else None
    if value is not None:
        schema = _apply_limit(schema, keyword, value)
    return schema


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
