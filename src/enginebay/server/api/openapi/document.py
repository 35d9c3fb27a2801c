"""Builds the OpenAPI document. Pure."""

from __future__ import annotations

import re
from typing import Any

from enginebay import __version__
from enginebay.config.sections.server_section import ServerLimits
from enginebay.server.api.anthropic.anthropic_errors import OVERLOADED_STATUS
from enginebay.server.api.openapi.ollama_operations import OLLAMA_TAG
from enginebay.server.api.openapi.operation import EVENT_STREAM, JSON, NDJSON_MEDIA, Operation
from enginebay.server.api.openapi.operations import OPERATIONS
from enginebay.server.api.openapi.request_schemas import BODIES, EMBEDDING_BODIES, build_request_schemas
from enginebay.server.api.openapi.response_schemas import build_response_schemas
from enginebay.server.api.openapi.schema_builders import OBJECT, STRING, Schema, any_of, const, obj, ref
from enginebay.server.requests.server_context import Route

_INTRODUCTION = (
    "Any LLM on any engine behind one OpenAI-compatible API. Fields that OpenAI does not have work on every engine that "
    "supports them; send them in the OpenAI SDK's `extra_body`. No field is dropped silently: it is honoured, translated "
    "(named in the header `x-enginebay-translated`), ignored because the response is as good without it (named in "
    "`x-enginebay-ignored`), or refused with 400 and its name in `param`."
)
_TAGS = {
    "Generation": "Generate text and embeddings",
    "Responses and conversations": "What the server stores for an API key: see server.state in the configuration",
    "Models and tokens": "List models, tokenize and detokenize",
    OLLAMA_TAG: "The Ollama API, for Ollama clients",
    "Server": "Health, metrics and documentation",
    "Administration": "Inspect and change the running server; needs a key with the scope admin",
}

RESPONSE_HEADERS: dict[str, Schema] = {
    "x-request-id": {"description": "The request's id in the server log: yours, if you sent one."},
    "x-enginebay-engine": {"description": "The engine that served the request, and its version."},
    "x-enginebay-replica": {"description": "The replica that served the request, for models that may have several."},
    "x-enginebay-fallback": {
        "description": "The engine that replaced the first one in the chain, and why. Absent without a fallback."
    },
    "x-enginebay-translated": {
        "description": "Translated parameters, each with what the engine does instead. Absent if there are none."
    },
    "x-enginebay-ignored": {
        "description": "Fields that were ignored, each with the reason; `unknown` if the server does not know the field. Absent if there are none."
    },
    "x-enginebay-truncated": {"description": "How many prompt tokens truncate_prompt_tokens dropped. Absent if none."},
    "retry-after": {"description": "Seconds to wait before retrying."},
    "www-authenticate": {"description": "How to send an API key."},
    "x-ratelimit-limit-requests": {"description": "Requests per minute allowed for this key, if limited."},
    "x-ratelimit-remaining-requests": {"description": "Requests remaining."},
    "x-ratelimit-reset-requests": {"description": "Time until the full limit is available again."},
    "x-ratelimit-limit-tokens": {"description": "Tokens per minute allowed for this key, if limited."},
    "x-ratelimit-remaining-tokens": {"description": "Tokens remaining."},
    "x-ratelimit-reset-tokens": {"description": "Time until the full limit is available again."},
}
_RATE_LIMIT_HEADERS = [name for name in RESPONSE_HEADERS if name.startswith("x-ratelimit-")]

STATUS_MEANINGS = {
    400: "The request is invalid, or the model's engine does not support a parameter. `param` names the field.",
    401: "The API key is missing or unknown.",
    403: "The key lacks the scope, or the page's origin is not allowed.",
    404: "The model, or the stored response or conversation, does not exist.",
    408: "The request did not arrive in time.",
    413: "The body is too large.",
    415: "The content encoding of the body is not supported.",
    422: "The request killed two workers while nothing else ran, so it is refused.",
    429: "The key reached its rate limit, or has too many large requests in memory.",
    431: "The headers are too large.",
    500: "The server or the engine failed on this request.",
    502: "The remote server of the model does not respond.",
    503: "Temporarily unavailable: the queue is full, the engine is not available, or the server is stopping.",
    504: "The response took longer than the server allows.",
}
# By the name of an error's schema: what its responses mean.
_ERROR_MEANINGS = {
    "Error": STATUS_MEANINGS,
    "OllamaError": STATUS_MEANINGS,
    "AnthropicError": {**STATUS_MEANINGS, OVERLOADED_STATUS: "The queue is full, or the model is not loaded in time."},
}
_BODIES_WITH_MODEL = {body.__name__ for body in BODIES if "model" in body.__struct_fields__}
_PRE_ROUTING_STATUSES = (408, 413, 415, 431)  # refused by the HTTP layer


def build_document(
    routes: tuple[Route, ...],
    limits: ServerLimits,
    models: tuple[str, ...] = (),
    embedders: tuple[str, ...] = (),
    unknown_fields: str = "ignore",
) -> dict[str, Any]:
    """Return the whole document for a server with these routes, limits and models."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = OPERATIONS[route.method, route.path]
        if not operation.hidden:
            names = embedders if operation.body in EMBEDDING_BODIES else models
            paths.setdefault(route.path, {})[route.method.lower()] = _build_operation(route, operation, names)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Enginebay", "version": __version__, "description": _INTRODUCTION,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": {
                **build_request_schemas(limits, models, embedders, unknown_fields), **build_response_schemas(), "OpenApi": OBJECT,
            },
            "headers": {name: {**header, "schema": STRING} for name, header in RESPONSE_HEADERS.items()},
            "responses": {
                f"{name}{status}": _build_error(name, status, meaning)
                for name, meanings in _ERROR_MEANINGS.items()
                for status, meaning in meanings.items()
            },
            "securitySchemes": {
                "key": {
                    "type": "http", "scheme": "bearer",
                    "description": "Create one with `bay keys create`. A server that only listens on loopback may need none.",
                }
            },
        },
    }  # fmt: skip


def _build_operation(route: Route, operation: Operation, models: tuple[str, ...]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "operationId": operation.operation_id,
        "tags": [operation.tag],
        "summary": operation.summary,
        **({"description": operation.description} if operation.description else {}),
        "security": [{"key": []}, {}] if route.scope is not None else [],
    }
    parameters = [_build_path_parameter(name, models) for name in re.findall(r"\{(\w+)\}", route.path)]
    parameters += [
        {"name": name, "in": "query", "required": required, **details} for name, required, details in operation.query
    ]
    if parameters:
        document["parameters"] = parameters
    if operation.body:
        content: dict[str, Any] = {"schema": ref(operation.body)}
        if operation.examples:
            model = {"model": models[0] if models else "MODEL"} if operation.body in _BODIES_WITH_MODEL else {}
            content["examples"] = {title: {"value": {**model, **body}} for title, body in operation.examples.items()}
        document["requestBody"] = {"required": operation.body_required, "content": {JSON: content}}
    document["responses"] = {"200": _build_success(route, operation)}
    for status in _list_error_statuses(route, operation):
        document["responses"][str(status)] = {"$ref": f"#/components/responses/{operation.error}{status}"}
    for status, (meaning, schema_name) in operation.extra_responses.items():
        document["responses"][str(status)] = {
            "description": meaning, "headers": _refer_headers("x-request-id"),
            "content": {JSON: {"schema": ref(schema_name)}},
        }  # fmt: skip
    return document


def _build_path_parameter(name: str, models: tuple[str, ...]) -> dict[str, Any]:
    if name == "id":
        schema = {"enum": list(models), "type": "string"} if models else STRING
        return {"name": name, "in": "path", "required": True, "description": "The model's name.", "schema": schema}
    kind = name.removesuffix("_id")
    schema = {"type": "string", "minLength": 1, "pattern": "^[^/]+$"}
    return {"name": name, "in": "path", "required": True, "description": f"The {kind}'s id.", "schema": schema}


def _list_error_statuses(route: Route, operation: Operation) -> list[int]:
    """Return the error statuses that this operation can return."""
    statuses = {400, 403, 408, 413, 431, 500}
    if route.scope not in (None, "optional"):
        statuses |= {401}
    if operation.names_model:
        statuses |= {404}
    if operation.names_state:
        statuses |= {404, 503}
    if operation.body:
        statuses |= {415, 429, 503}
    if route.limits_streams:
        statuses |= {429}
    if route.scope == "admin":
        statuses |= {503}
    if operation.generates or operation.body in EMBEDDING_BODIES:
        statuses |= {422}
    if operation.generates:
        statuses |= {502, 504}
    if operation.error == "AnthropicError":
        statuses |= {OVERLOADED_STATUS}
    return sorted(statuses - set(operation.extra_responses))


def _build_success(route: Route, operation: Operation) -> dict[str, Any]:
    media: dict[str, Any] = {operation.media: {"schema": ref(operation.response) if operation.response else STRING}}
    if operation.event:
        media[EVENT_STREAM] = {"schema": _build_event_schema(operation.event)}
    if operation.lines:
        media[NDJSON_MEDIA] = {"schema": {**STRING, "contentMediaType": JSON, "contentSchema": ref(operation.lines)}}
    names = ["x-request-id"]
    if operation.names_model and route.scope != "admin":
        names += ["x-enginebay-engine", "x-enginebay-replica", "x-enginebay-fallback"]
    if operation.generates:
        names.append("x-enginebay-translated")
    if operation.body and route.scope != "admin":
        names.append("x-enginebay-ignored")
    if operation.generates or operation.body in EMBEDDING_BODIES:
        names.append("x-enginebay-truncated")
    if route.rate_limited or route.limits_streams:
        names += _RATE_LIMIT_HEADERS
    return {"description": operation.summary, "headers": _refer_headers(*names), "content": media}


def _build_event_schema(name: str) -> Schema:
    """Describe one server-sent event as OpenAPI 3.2 does."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": ref(name)}
    fields = {"event": STRING, "data": any_of(data, const("[DONE]"))}
    return {**obj(fields, ("event",)), "description": "A server-sent event with JSON data."}


def _build_error(name: str, status: int, meaning: str) -> dict[str, Any]:
    own = [] if status in _PRE_ROUTING_STATUSES else ["x-request-id"]
    extra = {
        401: ["www-authenticate"],
        429: ["retry-after", *_RATE_LIMIT_HEADERS],
        503: ["retry-after"],
        OVERLOADED_STATUS: ["retry-after"],
    }.get(status, [])
    return {
        "description": meaning, "headers": _refer_headers(*own, *extra),
        "content": {JSON: {"schema": ref(name)}},
    }  # fmt: skip


def _refer_headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
