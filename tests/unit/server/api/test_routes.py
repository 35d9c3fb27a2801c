"""Which route a request takes."""

from __future__ import annotations

import pytest

from enginebay.errors import MethodNotAllowed, NotFound
from enginebay.server.api.routes import find_route


@pytest.mark.parametrize(
    ("method", "path", "template"),
    [
        ("POST", "/v1/responses", "/v1/responses"),
        ("HEAD", "/v1/models", "/v1/models"),
        ("GET", "/v1/models/org/name", "/v1/models/{id}"),
        ("GET", "/v1/responses/resp_1", "/v1/responses/{response_id}"),
        ("DELETE", "/v1/responses/resp_1", "/v1/responses/{response_id}"),
        ("POST", "/v1/responses/resp_1/cancel", "/v1/responses/{response_id}/cancel"),
        ("POST", "/v1/responses/compact", "/v1/responses/compact"),
        ("DELETE", "/v1/conversations/c/items/i", "/v1/conversations/{conversation_id}/items/{item_id}"),
    ],
)
def test_routes(method: str, path: str, template: str) -> None:
    assert find_route(method, path).path == template


@pytest.mark.parametrize(
    "path",
    ["/v1/responses//", "/v1/responses/a/b", "/v1/models//", "/v1/conversations/c/items//", "/v1/x", "/V1/models"],
)
def test_unknown_paths(path: str) -> None:
    with pytest.raises(NotFound) as error:
        find_route("GET", path)
    assert not isinstance(error.value, MethodNotAllowed)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/responses", "POST"),
        ("PUT", "/v1/responses/resp_1", "GET, HEAD, DELETE"),
        ("DELETE", "/v1/models/a/b", "GET, HEAD"),
        ("GET", "/v1/responses/compact", "POST"),
        ("POST", "/health", "GET, HEAD"),
    ],
)
def test_other_methods(method: str, path: str, allowed: str) -> None:
    with pytest.raises(MethodNotAllowed) as error:
        find_route(method, path)
    assert error.value.allowed == allowed
