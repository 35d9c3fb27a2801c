"""Every endpoint of the API."""

from __future__ import annotations

from enginebay.errors import MethodNotAllowed, NotFound
from enginebay.server.api import health_endpoints
from enginebay.server.api.admin import endpoints as admin_endpoints
from enginebay.server.api.openai import chat_completions, completions, embeddings, model_endpoints, responses
from enginebay.server.api.openapi import docs_endpoints
from enginebay.server.api.websocket import response_socket
from enginebay.server.requests.server_context import Route

ROUTES = (
    Route("POST", "/v1/chat/completions", chat_completions.create_chat_completion, "chat", rate_limited=True),
    Route("POST", "/v1/completions", completions.create_completion, "completions", rate_limited=True),
    Route("POST", "/v1/embeddings", embeddings.create_embeddings, "embeddings", rate_limited=True),
    Route("POST", "/v1/responses", responses.create_response, "responses", rate_limited=True),
    Route("GET", "/v1/models", model_endpoints.list_models, "models"),
    Route("GET", "/v1/models/{id}", model_endpoints.get_model, "models"),
    Route("POST", "/tokenize", model_endpoints.tokenize, "tokenize", rate_limited=True),
    Route("POST", "/detokenize", model_endpoints.detokenize, "detokenize", rate_limited=True),
    Route("GET", "/health", health_endpoints.get_readiness, "health", scope="optional"),
    Route("GET", "/health/live", health_endpoints.get_liveness, "health", scope=None),
    Route("GET", "/health/ready", health_endpoints.get_readiness, "health", scope="optional"),
    Route("GET", "/metrics", health_endpoints.get_metrics, "metrics", scope="any"),
    Route("GET", "/admin/ps", admin_endpoints.ps, "admin.ps", scope="admin"),
    Route("POST", "/admin/load", admin_endpoints.load, "admin.load", scope="admin"),
    Route("POST", "/admin/sleep", admin_endpoints.sleep, "admin.sleep", scope="admin"),
    Route("POST", "/admin/unload", admin_endpoints.unload, "admin.unload", scope="admin"),
    Route("POST", "/admin/switch", admin_endpoints.switch, "admin.switch", scope="admin"),
    Route("GET", "/admin/switches", admin_endpoints.list_switches, "admin.switches", scope="admin"),
    Route("GET", "/admin/meters", admin_endpoints.meters, "admin.meters", scope="admin"),
    Route("GET", "/admin/logs", admin_endpoints.logs, "admin.logs", scope="admin"),
    Route("POST", "/admin/reload", admin_endpoints.reload, "admin.reload", scope="admin"),
    Route("POST", "/admin/adapters", admin_endpoints.add_adapter, "admin.adapters", scope="admin"),
    Route("POST", "/admin/adapters/remove", admin_endpoints.remove_adapter, "admin.adapters", scope="admin"),
    Route("POST", "/admin/engines/upgrade", admin_endpoints.upgrade, "admin.upgrade", scope="admin"),
    Route("GET", "/openapi.json", docs_endpoints.get_openapi, "docs", scope="optional"),
    Route("GET", "/docs", docs_endpoints.get_docs_page, "docs", scope=None),
    Route("GET", "/", docs_endpoints.get_docs_page, "docs", scope=None),
)

# A WebSocket, and each of its messages. OpenAPI cannot describe them.
WEBSOCKET_ROUTES: dict[tuple[str, str], Route] = {
    (route.method, route.path): route
    for route in (
        Route("WEBSOCKET", "/v1/responses", response_socket.serve_responses, "responses.websocket"),
        Route("MESSAGE", "/v1/responses", response_socket.answer_message, "responses", rate_limited=True),
    )
}

_ROUTES_BY_PATH = {(route.method, route.path): route for route in ROUTES if "{" not in route.path} | WEBSOCKET_ROUTES
_PATHS = {route.path for route in ROUTES}
_MODEL_ROUTE = next(route for route in ROUTES if route.path == "/v1/models/{id}")


def find_route(method: str, path: str) -> Route:
    """Return the route of a request. Raise `NotFound` or `MethodNotAllowed`."""
    lookup = "GET" if method == "HEAD" else method
    route = _ROUTES_BY_PATH.get((lookup, path))
    if route is not None:
        return route
    if path.startswith("/v1/models/") and len(path) > len("/v1/models/"):
        if lookup == "GET":
            return _MODEL_ROUTE
        raise MethodNotAllowed(f"{_MODEL_ROUTE.path} does not allow {method[:20]}", "use GET", allowed="GET, HEAD")
    if path in _PATHS:
        allowed = "GET, HEAD" if ("GET", path) in _ROUTES_BY_PATH else "POST"
        raise MethodNotAllowed(f"{path} does not allow {method[:20]}", f"use {allowed}", allowed=allowed)
    raise NotFound(f"not found: {path[:200]!r}", "see /docs for all endpoints")
