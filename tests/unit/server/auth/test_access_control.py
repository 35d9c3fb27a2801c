"""Access control: the key of a request, and web pages of other sites."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from enginebay.errors import Forbidden, Unauthorized
from enginebay.server.auth.access_control import authenticate, check_origin, is_loopback
from enginebay.server.auth.api_keys import ApiKey, Keyring, hash_key
from enginebay.server.http.exchange import Exchange

PLAIN, ADMIN = ApiKey("plain", hash_key("plain-key")), ApiKey("admin", hash_key("admin-key"), frozenset({"admin"}))
RING = Keyring([PLAIN, ADMIN])


def make_exchange(peer: str = "127.0.0.1:5000", **headers: str) -> Exchange:
    return Exchange(cast("Any", SimpleNamespace(peer=peer)), "POST", "/v1/models", headers)


def added_headers(exchange: Exchange) -> dict[str, str]:
    lines = [line.decode().strip().partition(": ") for line in exchange._header_lines]
    return {name: value for name, _, value in lines}


# Keys


def test_without_keys_none_is_required() -> None:
    assert authenticate(Keyring(), {}, "inference") is None
    assert authenticate(Keyring(), {"authorization": "Bearer whatever"}, "inference") is None


@pytest.mark.parametrize("value", ["Bearer plain-key", "bearer plain-key", "BEARER  plain-key "])
def test_ways_to_write_a_key(value: str) -> None:
    assert authenticate(RING, {"authorization": value}, "inference") is PLAIN


def test_a_key_in_the_header_of_anthropics_clients() -> None:
    assert authenticate(RING, {"x-api-key": " plain-key "}, "inference") is PLAIN
    assert authenticate(RING, {"x-api-key": "plain-key", "authorization": "Basic xyz"}, "inference") is PLAIN
    assert authenticate(RING, {"x-api-key": "unknown", "authorization": "Bearer plain-key"}, "inference") is PLAIN
    for headers in ({"x-api-key": ""}, {"x-api-key": "plain-ke"}, {"x-api-key": "Bearer plain-key"}):
        with pytest.raises(Unauthorized):
            authenticate(RING, headers, "inference")
    with pytest.raises(Forbidden):
        authenticate(RING, {"x-api-key": "plain-key"}, "admin")


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "plain-key",
        "Basic plain-key",
        "Bearer plain-ke",
        "Bearer plain-key,Bearer plain-key",
    ],
)
def test_invalid_keys(value: str | None) -> None:
    headers = {} if value is None else {"authorization": value}
    with pytest.raises(Unauthorized) as refused:
        authenticate(RING, headers, "inference")
    assert "plain" not in str(refused.value)


def test_the_scope_is_required() -> None:
    with pytest.raises(Forbidden, match="inference"):
        authenticate(RING, {"authorization": "Bearer admin-key"}, "inference")
    assert authenticate(RING, {"authorization": "Bearer admin-key"}, "admin") is ADMIN
    with pytest.raises(Forbidden, match="admin"):
        authenticate(RING, {"authorization": "Bearer plain-key"}, "admin")


# Pages of other sites


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),  # HTTP/1.0 without a Host; browsers always send one
        ({"host": "localhost"}, True),
        ({"host": "LOCALHOST:8000"}, True),
        ({"host": "127.0.0.1:8000"}, True),
        ({"host": "127.8.9.1"}, True),
        ({"host": "[::1]:8000"}, True),
        ({"host": "[::1]"}, True),
        ({"host": "x.localhost"}, True),
        ({"host": "evil.example"}, False),
        ({"host": "evil.example:8000"}, False),
        ({"host": "localhost.evil.example"}, False),
        ({"host": "127.0.0.1.evil.example"}, False),
        ({"host": "10.0.0.1"}, False),
        ({"host": "0.0.0.0"}, False),
        ({"host": "[::]:80"}, False),
        ({"host": "localhost,evil.example"}, False),
        ({"host": "localhost", "origin": "https://evil.example"}, False),
        ({"host": "localhost", "origin": "null"}, False),
        ({"host": "localhost", "origin": ""}, False),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, True),
        ({"host": "localhost:8000", "origin": "http://localhost:3000"}, False),
        ({"host": "evil.example", "origin": "http://evil.example"}, False),
        ({"host": "localhost", "origin": "https://app.example"}, True),
        ({"host": "localhost", "origin": "https://app.example.evil"}, False),
    ],
)
def test_without_keys_only_local_origins_have_access(headers: dict[str, str], allowed: bool) -> None:
    exchange = make_exchange(**headers)
    if allowed:
        check_origin(exchange, ("https://app.example",), keyless=True)
    else:
        with pytest.raises(Forbidden):
            check_origin(exchange, ("https://app.example",), keyless=True)
        assert "access-control-allow-origin" not in added_headers(exchange)


@pytest.mark.parametrize("peer", ["10.0.0.7:5000", "fe80::1%eth0:5000", "::ffff:10.0.0.7:5000", ""])
@pytest.mark.parametrize("headers", [{"host": "localhost"}, {}, {"host": "localhost", "origin": "https://app.example"}])
def test_without_keys_remote_peers_are_refused_despite_a_local_host_header(peer: str, headers: dict[str, str]) -> None:
    with pytest.raises(Forbidden):
        check_origin(make_exchange(peer, **headers), ("https://app.example",), keyless=True)
    check_origin(make_exchange(peer, **headers), ("https://app.example",), keyless=False)


@pytest.mark.parametrize("peer", ["127.0.0.1:5000", "::1:5000", "::ffff:127.0.0.1:5000", "local"])
def test_without_keys_local_peers_have_access(peer: str) -> None:
    check_origin(make_exchange(peer, host="localhost"), (), keyless=True)


def test_with_keys_the_key_decides() -> None:
    for headers in ({"host": "models.example"}, {"host": "models.example", "origin": "https://other.example"}):
        exchange = make_exchange(**headers)
        check_origin(exchange, (), keyless=False)
        assert added_headers(exchange) == {}  # so the browser hides the response from a page that is not allowed


@pytest.mark.parametrize("origins", [("https://app.example",), ("*",), ("https://a.example", "https://app.example")])
def test_an_allowed_origin_gets_cors_headers(origins: tuple[str, ...]) -> None:
    for keyless in (True, False):
        exchange = make_exchange(host="localhost", origin="https://app.example")
        check_origin(exchange, origins, keyless)
        headers = added_headers(exchange)
        assert headers["access-control-allow-origin"] == "https://app.example" and headers["vary"] == "origin"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.255.0.1", "::1"])
def test_loopback_addresses(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", ["0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "localhost", "", "127.0.0.1.evil.example"]
)
def test_other_addresses(address: str) -> None:
    assert not is_loopback(address)
