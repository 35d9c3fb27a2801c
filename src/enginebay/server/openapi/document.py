"""Puts the OpenAPI document together. Pure: the same facts give the same document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enginebay import __version__
from enginebay.config.server import Limits
from enginebay.server.openapi.answers import ANSWERS
from enginebay.server.openapi.operations import EVENTS, JSON, OPERATIONS, Operation
from enginebay.server.openapi.requests import BODIES, request_schemas
from enginebay.server.openapi.shapes import OBJECT, STRING, Schema, const, either, obj, ref

if TYPE_CHECKING:
    from enginebay.server.routes import Route

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

HEADERS: dict[str, Schema] = {
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
_RATES = [name for name in HEADERS if name.startswith("x-ratelimit-")]

MEANINGS = {
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
_NAMING_A_MODEL = {body.__name__ for body in BODIES if "model" in body.__struct_fields__}
_BEFORE = (408, 413, 415, 431)  # turned away before it is a request at all


def document(limits: Limits, models: tuple[str, ...] = (), embedders: tuple[str, ...] = ()) -> dict[str, Any]:
    """The whole document, for a server with these limits and models."""
    from enginebay.server.routes import ROUTES  # routes know the endpoint that shows this document

    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        operation = OPERATIONS[route.method, route.path]
        if not operation.hidden:
            names = embedders if operation.body == "EmbeddingBody" else models
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, operation, names)
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
            "schemas": {**request_schemas(limits, models, embedders), **ANSWERS, "OpenApi": OBJECT},
            "headers": {name: {**header, "schema": STRING} for name, header in HEADERS.items()},
            "responses": {f"Error{status}": _error(status) for status in MEANINGS},
            "securitySchemes": {
                "key": {
                    "type": "http", "scheme": "bearer",
                    "description": "Made with `bay keys create`. A server on this host alone may need none.",
                }
            },
        },
    }  # fmt: skip


def _operation(route: Route, operation: Operation, models: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.id,
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
            model = {"model": models[0] if models else "MODEL"} if operation.body in _NAMING_A_MODEL else {}
            content["examples"] = {title: {"value": {**model, **body}} for title, body in operation.examples.items()}
        found["requestBody"] = {"required": True, "content": {JSON: content}}
    found["responses"] = {"200": _success(route, operation)}
    for status in _statuses(route, operation):
        found["responses"][str(status)] = {"$ref": f"#/components/responses/Error{status}"}
    for status, (meaning, schema_name) in operation.also.items():
        found["responses"][str(status)] = {
            "description": meaning, "headers": _headers("x-request-id"),
            "content": {JSON: {"schema": ref(schema_name)}},
        }  # fmt: skip
    return found


def _statuses(route: Route, operation: Operation) -> list[int]:
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
    if route.counted:
        found |= {429}
    if operation.generates:
        found |= {502, 504}
    return sorted(found - set(operation.also))


def _success(route: Route, operation: Operation) -> dict[str, Any]:
    media: dict[str, Any] = {operation.media: {"schema": ref(operation.answer) if operation.answer else STRING}}
    if operation.event:
        media[EVENTS] = {"schema": _event(operation.event)}
    names = ["x-request-id"]
    if operation.names_model and route.scope != "admin":
        names += ["x-enginebay-engine", "x-enginebay-fallback"]
    if operation.generates:
        names.append("x-enginebay-translated")
    if operation.generates or operation.body == "EmbeddingBody":
        names.append("x-enginebay-truncated")
    if route.counted:
        names += _RATES
    return {"description": operation.summary, "headers": _headers(*names), "content": media}


def _event(name: str) -> Schema:
    """One server-sent event, in the way that OpenAPI 3.2 describes them."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": ref(name)}
    fields = {"event": STRING, "data": either(data, const("[DONE]"))}
    return {**obj(fields, ("event",)), "description": "One of the server-sent events; its data is JSON."}


def _error(status: int) -> dict[str, Any]:
    own = [] if status in _BEFORE else ["x-request-id"]
    extra = {401: ["www-authenticate"], 429: ["retry-after", *_RATES], 503: ["retry-after"]}.get(status, [])
    return {
        "description": MEANINGS[status], "headers": _headers(*own, *extra),
        "content": {JSON: {"schema": ref("Error")}},
    }  # fmt: skip


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
