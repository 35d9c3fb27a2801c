"""Every place of the API: how it is asked, who may, and what answers."""

from __future__ import annotations

from typing import NamedTuple

from enginebay.errors import NoSuchPlace, WrongMethod
from enginebay.server.context import Handler
from enginebay.server.endpoints import admin, chat, completions, documentation, embeddings, information, responses


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler
    name: str  # in metrics and logs
    scope: str | None = "inference"  # what a key must allow; "any" key will do; None: open to all
    counted: bool = False  # against a key's rate limits


ROUTES = (
    Route("POST", "/v1/chat/completions", chat.chat, "chat", counted=True),
    Route("POST", "/v1/completions", completions.completions, "completions", counted=True),
    Route("POST", "/v1/embeddings", embeddings.embeddings, "embeddings", counted=True),
    Route("POST", "/v1/responses", responses.responses, "responses", counted=True),
    Route("GET", "/v1/models", information.list_models, "models"),
    Route("GET", "/v1/models/{id}", information.show_model, "models"),
    Route("POST", "/tokenize", information.tokenize, "tokenize", counted=True),
    Route("POST", "/detokenize", information.detokenize, "detokenize", counted=True),
    Route("GET", "/health", information.ready, "health", scope=None),
    Route("GET", "/health/live", information.live, "health", scope=None),
    Route("GET", "/health/ready", information.ready, "health", scope=None),
    Route("GET", "/metrics", information.metrics, "metrics", scope="any"),
    Route("GET", "/admin/ps", admin.ps, "admin.ps", scope="admin"),
    Route("POST", "/admin/load", admin.load, "admin.load", scope="admin"),
    Route("POST", "/admin/sleep", admin.sleep, "admin.sleep", scope="admin"),
    Route("POST", "/admin/unload", admin.unload, "admin.unload", scope="admin"),
    Route("POST", "/admin/switch", admin.switch, "admin.switch", scope="admin"),
    Route("GET", "/admin/switches", admin.switches, "admin.switches", scope="admin"),
    Route("GET", "/admin/meters", admin.meters, "admin.meters", scope="admin"),
    Route("GET", "/admin/logs", admin.logs, "admin.logs", scope="admin"),
    Route("POST", "/admin/reload", admin.reload, "admin.reload", scope="admin"),
    Route("POST", "/admin/adapters", admin.add_adapter, "admin.adapters", scope="admin"),
    Route("POST", "/admin/adapters/remove", admin.remove_adapter, "admin.adapters", scope="admin"),
    Route("POST", "/admin/engines/upgrade", admin.upgrade, "admin.upgrade", scope="admin"),
    Route("GET", "/openapi.json", documentation.openapi, "docs", scope=None),
    Route("GET", "/docs", documentation.page, "docs", scope=None),
    Route("GET", "/", documentation.page, "docs", scope=None),
)

_EXACT = {(route.method, route.path): route for route in ROUTES if "{" not in route.path}
_PATHS = {route.path for route in ROUTES}
_MODEL = next(route for route in ROUTES if route.path == "/v1/models/{id}")


def find_route(method: str, path: str) -> Route:
    """The route of a request. Raises `NoSuchPlace`."""
    asked = "GET" if method == "HEAD" else method
    route = _EXACT.get((asked, path))
    if route is not None:
        return route
    if path.startswith("/v1/models/") and len(path) > len("/v1/models/"):
        if asked == "GET":
            return _MODEL
        raise WrongMethod(f"{method[:20]} is not for models", "use GET", allowed="GET, HEAD")
    if path in _PATHS:
        allowed = "GET, HEAD" if ("GET", path) in _EXACT else "POST"
        raise WrongMethod(f"{path} is not asked with {method[:20]}", f"use {allowed}", allowed=allowed)
    raise NoSuchPlace(f"there is nothing at {path[:200]!r}", "/docs lists every endpoint")
