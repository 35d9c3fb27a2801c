"""Every endpoint of the API."""

from __future__ import annotations

import re

from enginebay.errors import MethodNotAllowed, NotFound
from enginebay.server.api import health_endpoints, model_routes
from enginebay.server.api.admin import endpoints as admin_endpoints
from enginebay.server.api.anthropic import messages
from enginebay.server.api.ollama import embed, generation, model_details, model_pull
from enginebay.server.api.ollama import endpoints as ollama_endpoints
from enginebay.server.api.openai import chat_completions, completions, embeddings, model_endpoints, responses
from enginebay.server.api.openai.responses_api import compaction, conversation_endpoints, response_endpoints
from enginebay.server.api.openapi import docs_endpoints
from enginebay.server.api.websocket import response_socket
from enginebay.server.requests.server_context import Route

ROUTES = (
    Route("POST", "/v1/chat/completions", chat_completions.create_chat_completion, "chat", rate_limited=True),
    Route("POST", "/v1/completions", completions.create_completion, "completions", rate_limited=True),
    Route("POST", "/v1/embeddings", embeddings.create_embeddings, "embeddings", rate_limited=True),
    Route("POST", "/v1/responses", responses.create_response, "responses", rate_limited=True),
    Route("POST", "/v1/messages", messages.create_message, "messages", rate_limited=True),
    Route("POST", "/v1/messages/count_tokens", messages.count_tokens, "messages.count_tokens", rate_limited=True),
    Route("POST", "/v1/responses/input_tokens", responses.count_input_tokens, "responses.input_tokens", rate_limited=True),
    Route("POST", "/v1/responses/compact", compaction.compact_response, "responses.compact", rate_limited=True),
    Route("GET", "/v1/responses/{response_id}", response_endpoints.get_response, "responses.get", limits_streams=True),
    Route("DELETE", "/v1/responses/{response_id}", response_endpoints.delete_response, "responses.delete"),
    Route("POST", "/v1/responses/{response_id}/cancel", response_endpoints.cancel_response, "responses.cancel"),
    Route("GET", "/v1/responses/{response_id}/input_items", response_endpoints.list_input_items, "responses.input_items"),
    Route("POST", "/v1/conversations", conversation_endpoints.create_conversation, "conversations", rate_limited=True),
    Route("GET", "/v1/conversations/{conversation_id}", conversation_endpoints.get_conversation, "conversations"),
    Route("POST", "/v1/conversations/{conversation_id}", conversation_endpoints.update_conversation, "conversations"),
    Route("DELETE", "/v1/conversations/{conversation_id}", conversation_endpoints.delete_conversation, "conversations"),
    Route("GET", "/v1/conversations/{conversation_id}/items", conversation_endpoints.list_items, "conversations.items"),
    Route(
        "POST", "/v1/conversations/{conversation_id}/items", conversation_endpoints.create_items, "conversations.items",
        rate_limited=True,
    ),
    Route("GET", "/v1/conversations/{conversation_id}/items/{item_id}", conversation_endpoints.get_item, "conversations.items"),
    Route("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}", conversation_endpoints.delete_item, "conversations.items"),
    Route("GET", "/v1/models", model_routes.list_models, "models"),
    Route("GET", "/v1/models/{id}", model_routes.get_model, "models"),
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
    Route("GET", "/", ollama_endpoints.get_home, "docs", scope=None),
    Route("POST", "/api/chat", generation.chat, "ollama.chat", rate_limited=True),
    Route("POST", "/api/generate", generation.generate, "ollama.generate", rate_limited=True),
    Route("POST", "/api/embed", embed.embed, "ollama.embed", rate_limited=True),
    Route("POST", "/api/embeddings", embed.embed_prompt, "ollama.embeddings", rate_limited=True),
    Route("GET", "/api/tags", model_details.list_tags, "ollama.tags"),
    Route("POST", "/api/show", model_details.show, "ollama.show"),
    Route("GET", "/api/ps", model_details.list_running, "ollama.ps"),
    Route("POST", "/api/pull", model_pull.pull, "ollama.pull", scope="admin", forbidden_hint=model_pull.HINT),
    Route("GET", "/api/version", ollama_endpoints.get_version, "ollama.version", scope=None),
    Route("POST", "/api/copy", ollama_endpoints.copy, "ollama.copy"),
    Route("POST", "/api/create", ollama_endpoints.create, "ollama.create"),
    Route("POST", "/api/push", ollama_endpoints.push, "ollama.push"),
    Route("DELETE", "/api/delete", ollama_endpoints.delete, "ollama.delete"),
)  # fmt: skip

# A WebSocket, and each of its messages. OpenAPI cannot describe them.
WEBSOCKET_ROUTES: dict[tuple[str, str], Route] = {
    (route.method, route.path): route
    for route in (
        Route("WEBSOCKET", "/v1/responses", response_socket.serve_responses, "responses.websocket"),
        Route("MESSAGE", "/v1/responses", response_socket.answer_message, "responses", rate_limited=True),
    )
}

_ROUTES_BY_PATH = {(route.method, route.path): route for route in ROUTES if "{" not in route.path} | WEBSOCKET_ROUTES
_NAME_WITH_SLASHES = "{id}"  # of a model, such as org/model


def _compile_path(path: str) -> re.Pattern[str]:
    pattern = re.escape(path).replace(re.escape(_NAME_WITH_SLASHES), ".+")
    return re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", pattern))


_TEMPLATES = [(_compile_path(route.path), route) for route in ROUTES if "{" in route.path]


def find_route(method: str, path: str) -> Route:
    """Return the route of a request. Raise `NotFound` or `MethodNotAllowed`. A slash at the end does not matter."""
    path = path.removesuffix("/") or "/"
    lookup = "GET" if method == "HEAD" else method
    route = _ROUTES_BY_PATH.get((lookup, path))
    if route is not None:
        return route
    known = [one for one in ROUTES if one.path == path]
    found = known or [one for pattern, one in _TEMPLATES if pattern.fullmatch(path)]
    for one in found:
        if one.method == lookup:
            return one
    if not found:
        raise NotFound(f"not found: {path[:200]!r}", "see /docs for all endpoints")
    methods = [name for one in found for name in (("GET", "HEAD") if one.method == "GET" else (one.method,))]
    raise MethodNotAllowed(
        f"{found[0].path} does not allow {method[:20]}", f"use {', '.join(methods)}", allowed=", ".join(methods)
    )
