"""Request bodies: msgspec's schemas of the structs, made precise where a struct leaves an object open."""

from __future__ import annotations

from typing import Any

import msgspec

from enginebay.config.server import Limits
from enginebay.server.openapi.inputs import COMPONENTS, FIELDS, MEANINGS, RULES
from enginebay.server.openapi.shapes import NULL, Schema, enum
from enginebay.server.wire import admin_bodies, bodies

BODIES = (
    bodies.ChatBody,
    bodies.CompletionBody,
    bodies.EmbeddingBody,
    bodies.ResponsesBody,
    bodies.TokenizeBody,
    bodies.DetokenizeBody,
    admin_bodies.ModelBody,
    admin_bodies.SwitchBody,
    admin_bodies.AdapterBody,
    admin_bodies.AdapterNameBody,
    admin_bodies.UpgradeBody,
)
# They name models by engine, loaded or not, and no adapters: other names than clients ask for.
_OF_ADMIN = frozenset(body.__name__ for body in BODIES if body.__module__ == admin_bodies.__name__)

# (body, field): the schema's keyword that a configured limit sets, and which limit. The field may be a list or a union.
_LIMITED = {
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
_OF_TYPE = {"maximum": "integer", "maxItems": "array", "maxProperties": "object"}


def request_schemas(limits: Limits, models: tuple[str, ...], embedders: tuple[str, ...]) -> dict[str, Schema]:
    """All schemas of request bodies by name. Without models, any name is allowed."""
    _, components = msgspec.json.schema_components(BODIES, ref_template="#/components/schemas/{name}")
    for name, schema in components.items():
        for field in schema.get("properties", {}):
            schema["properties"][field] = _field(name, field, schema["properties"][field], limits)
        names = embedders if name == "EmbeddingBody" else models
        if "model" in schema.get("properties", {}) and names and name not in _OF_ADMIN:
            schema["properties"]["model"] = {"description": MEANINGS["model"], "type": "string", **enum(*names)}
        schema.update(RULES.get(name, {}))
    return {**components, **COMPONENTS}


def _field(body: str, field: str, schema: Schema, limits: Limits) -> Schema:
    meaning = _meaning(body, field, schema)
    precise = FIELDS.get((body, field)) or FIELDS.get(("*", field))
    if precise is not None:
        may_be_null = NULL in schema.get("anyOf", ())
        schema = {"anyOf": [*_alternatives(precise), NULL], "default": None} if may_be_null else dict(precise)
    keyword, limit = _LIMITED.get((body, field)) or _LIMITED.get(("*", field)) or ("", "")
    value = getattr(limits, limit) if limit else None
    if value is not None:
        schema = _limited(schema, keyword, value)
    return {"description": meaning, **schema} if meaning else schema


def _alternatives(schema: Schema) -> list[Schema]:
    alternatives: list[Schema] = schema.get("anyOf", [schema])
    return alternatives


def _meaning(body: str, field: str, schema: Schema) -> str:
    """Ours, else the description that the struct has somewhere in the field."""
    own = MEANINGS.get(f"{body}.{field}") or MEANINGS.get(field)
    found = (one.pop("description", "") for one in (schema, *schema.get("anyOf", ())))
    inner = next((text for text in list(found) if text), "")
    return own or inner


def _limited(schema: Schema, keyword: str, value: Any) -> Schema:
    """The limit, on the alternative that has the right type."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_limited(one, keyword, value) for one in schema["anyOf"]]}
    if schema.get("type") != _OF_TYPE[keyword]:
        return schema
    return {**schema, keyword: min(value, schema.get(keyword, value))}
