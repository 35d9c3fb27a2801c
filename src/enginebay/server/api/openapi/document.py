"""Puts the OpenAPI document together. Pure: the same facts give the same document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enginebay import __version__
from enginebay.config.sections.server_section import ServerLimits
from enginebay.server.api.openapi.operations import EVENT_STREAM, JSON, OPERATIONS, Operation
from enginebay.server.api.openapi.request_schemas import BODIES, build_request_schemas
from enginebay.server.api.openapi.response_schemas import RESPONSE_COMPONENTS
from enginebay.server.api.openapi.schema_builders import OBJECT, STRING, Schema, any_of, const, obj, ref

if TYPE_CHECKING:
    from enginebay.server.api.routes import Route

_INTRODUCTION = (
    "Any LLM on any engine behind one API, the one OpenAI's clients speak. Fields that OpenAI does not have work on every "
    "engine that can do them; the OpenAI SDK sends them in `extra_body`. Nothing is ignored silently: a field is done, "
    "done in another way (`x-enginebay-translated` says how), or refused with 400 and its name in `param`."
)
_TAGS = {
    "Generation": "Text and vectors from models",
    "Models and tokens": "What is there, and how it counts",
    "Server": "Its health and its description",
    "Administration": "Which models are loaded, and changes while it runs; needs a key with the scope admin",
}

RESPONSE_HEADERS: dict[str, Schema] = {
    "x-request-id": {"description": "This request's id in the server's log: yours, if you have sent one."},
    "x-enginebay-engine": {"description": "The engine that answered, and its version."},
    "x-enginebay-fallback": {
        "description": "Which engine answered in place of the first one, and why. Not there when the first did."
    },
    "x-enginebay-translated": {
        "description": "Parameters that the engine does in another way, each with how. Not there when none was."
    },
    "x-enginebay-truncated": {
        "description": "What truncate_prompt_tokens has left out of the prompt. Not there when nothing was."
    },
    "retry-after": {"description": "When to try again, in seconds."},
    "www-authenticate": {"description": "How to send a key."},
    "x-ratelimit-limit-requests": {"description": "Requests a minute that this key may make, if it has a limit."},
    "x-ratelimit-remaining-requests": {"description": "How many of them are left now."},
    "x-ratelimit-reset-requests": {"description": "When all of them are there again."},
    "x-ratelimit-limit-tokens": {"description": "Tokens a minute that this key may use, if it has a limit."},
    "x-ratelimit-remaining-tokens": {"description": "How many of them are left now."},
    "x-ratelimit-reset-tokens": {"description": "When all of them are there again."},
}
_RATE_LIMIT_HEADERS = [name for name in RESPONSE_HEADERS if name.startswith("x-ratelimit-")]

STATUS_MEANINGS = {
    400: "The request is wrong, or the model's engine cannot do what it asks. `param` names the field.",
    401: "An API key is needed, or the one given is not known.",
    403: "The key lacks the scope, or pages of this origin may not ask.",
    404: "There is no such model.",
    408: "The request did not arrive in time.",
    413: "The body is too large.",
    415: "The body is compressed in a way that is not known.",
    429: "The key has used up its share for now.",
    431: "The headers are too large.",
    500: "The server or the engine failed on this request.",
    502: "The model runs on another server, which does not answer.",
    503: "Not now: too many requests wait, the engine is not available, or the server is stopping.",
    504: "The answer took longer than the server allows.",
}
_BODIES_WITH_MODEL = {body.__name__ for body in BODIES if "model" in body.__struct_fields__}
_PRE_ROUTING_STATUSES = (408, 413, 415, 431)  # turned away before it is a request at all


def build_document(
    limits: ServerLimits, models: tuple[str, ...] = (), embedders: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The whole document, for a server with these limits and models."""
    from enginebay.server.api.routes import ROUTES  # routes know the endpoint that shows this document

    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        operation = OPERATIONS[route.method, route.path]
        if not operation.hidden:
            names = embedders if operation.body == "EmbeddingBody" else models
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
            "schemas": {**build_request_schemas(limits, models, embedders), **RESPONSE_COMPONENTS, "OpenApi": OBJECT},
            "headers": {name: {**header, "schema": STRING} for name, header in RESPONSE_HEADERS.items()},
            "responses": {f"Error{status}": _build_error(status) for status in STATUS_MEANINGS},
            "securitySchemes": {
                "key": {
                    "type": "http", "scheme": "bearer",
                    "description": "Made with `bay keys create`. A server on this host alone may need none.",
                }
            },
        },
    }  # fmt: skip


def _build_operation(route: Route, operation: Operation, models: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.operation_id,
        "tags": [operation.tag],
        "summary": operation.summary,
        **({"description": operation.description} if operation.description else {}),
        "security": [{"key": []}, {}] if route.scope is not None else [],
    }
    if "{id}" in route.path:
        schema = {"enum": list(models), "type": "string"} if models else STRING
        found["parameters"] = [
            {"name": "id", "in": "path", "required": True, "description": "The model's name.", "schema": schema}
        ]
    if operation.query:
        found["parameters"] = [
            {"name": name, "in": "query", "required": needed, **said_of} for name, needed, said_of in operation.query
        ]
    if operation.body:
        content: dict[str, Any] = {"schema": ref(operation.body)}
        if operation.examples:
            model = {"model": models[0] if models else "MODEL"} if operation.body in _BODIES_WITH_MODEL else {}
            content["examples"] = {title: {"value": {**model, **body}} for title, body in operation.examples.items()}
        found["requestBody"] = {"required": True, "content": {JSON: content}}
    found["responses"] = {"200": _build_success(route, operation)}
    for status in _list_error_statuses(route, operation):
        found["responses"][str(status)] = {"$ref": f"#/components/responses/Error{status}"}
    for status, (meaning, schema_name) in operation.extra_responses.items():
        found["responses"][str(status)] = {
            "description": meaning, "headers": _refer_headers("x-request-id"),
            "content": {JSON: {"schema": ref(schema_name)}},
        }  # fmt: skip
    return found


def _list_error_statuses(route: Route, operation: Operation) -> list[int]:
    """The failures that this operation can end in."""
    found = {400, 403, 408, 413, 431, 500}
    if route.scope is not None:
        found |= {401}
    if operation.names_model:
        found |= {404}
    if operation.body:
        found |= {415, 503}
    if route.scope == "admin":
        found |= {503}
    if route.rate_limited:
        found |= {429}
    if operation.generates:
        found |= {502, 504}
    return sorted(found - set(operation.extra_responses))


def _build_success(route: Route, operation: Operation) -> dict[str, Any]:
    media: dict[str, Any] = {operation.media: {"schema": ref(operation.response) if operation.response else STRING}}
    if operation.event:
        media[EVENT_STREAM] = {"schema": _build_event_schema(operation.event)}
    names = ["x-request-id"]
    if operation.names_model and route.scope != "admin":
        names += ["x-enginebay-engine", "x-enginebay-fallback"]
    if operation.generates:
        names.append("x-enginebay-translated")
    if operation.generates or operation.body == "EmbeddingBody":
        names.append("x-enginebay-truncated")
    if route.rate_limited:
        names += _RATE_LIMIT_HEADERS
    return {"description": operation.summary, "headers": _refer_headers(*names), "content": media}


def _build_event_schema(name: str) -> Schema:
    """One server-sent event, in the way that OpenAPI 3.2 describes them."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": ref(name)}
    fields = {"event": STRING, "data": any_of(data, const("[DONE]"))}
    return {**obj(fields, ("event",)), "description": "One of the server-sent events; its data is JSON."}


def _build_error(status: int) -> dict[str, Any]:
    own = [] if status in _PRE_ROUTING_STATUSES else ["x-request-id"]
    extra = {401: ["www-authenticate"], 429: ["retry-after", *_RATE_LIMIT_HEADERS], 503: ["retry-after"]}.get(
        status, []
    )
    return {
        "description": STATUS_MEANINGS[status], "headers": _refer_headers(*own, *extra),
        "content": {JSON: {"schema": ref("Error")}},
    }  # fmt: skip


def _refer_headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
