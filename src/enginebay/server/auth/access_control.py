"""Access control: API keys and scopes, local-only access without keys, and CORS."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache

from enginebay.errors import Forbidden, Unauthorized
from enginebay.server.auth.admin_token import check_admin_token
from enginebay.server.auth.api_keys import ApiKey, Keyring
from enginebay.server.http.exchange import Exchange

_EXPOSED_HEADERS = (
    "x-request-id, x-enginebay-engine, x-enginebay-fallback, x-enginebay-translated, x-enginebay-ignored, x-enginebay-truncated, "
    "retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
_PROXY_HEADERS = ("forwarded", "x-forwarded-for", "via")


def authenticate(keyring: Keyring, headers: Mapping[str, str], scope: str) -> ApiKey | None:
    """Return the request's key, or None if the server has no keys. Raise if the key is missing, unknown or lacks `scope`."""
    if not keyring:
        return None
    if not keyring.keys:
        raise Unauthorized(
            "the server requires an API key, but none exists",
            "create one with `bay keys create NAME`, then send the server SIGHUP",
        )
    presented = _read_key(headers)
    if not presented:
        raise Unauthorized("missing API key", "send it as `Authorization: Bearer KEY` or `x-api-key: KEY`")
    key = keyring.find(presented)
    if key is None:
        raise Unauthorized("unknown API key", "check it, or create one with `bay keys create`")
    if scope != "any" and scope not in key.scopes:
        raise Forbidden(f"the API key lacks the scope {scope}", "use a key that has this scope")
    return key


def _read_key(headers: Mapping[str, str]) -> str:
    """Return the key of the request, or "". Anthropic's clients send it as x-api-key."""
    kind, _, presented = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and presented.strip():
        return presented.strip()
    return headers.get("x-api-key", "").strip()


def check_origin(exchange: Exchange, origins: tuple[str, ...], keyless: bool) -> None:
    """Raise `Forbidden` for remote clients and cross-site web pages if the server has no keys.

    Origin identifies a page of another site; Host identifies DNS rebinding.
    """
    if keyless and not _is_local_peer(exchange):
        raise Forbidden("without an API key only local clients have access", "create a key: bay keys create NAME")
    if apply_cors(exchange, origins):
        return
    origin = exchange.headers.get("origin")
    if origin is not None and keyless and origin.partition("://")[2] != exchange.headers.get("host"):
        raise Forbidden("this origin is not allowed", "add it to server.cors_origins")
    if keyless and not _is_local_name(exchange.headers.get("host", "")):
        raise Forbidden("without an API key the Host header must be a local name", "use localhost, or create a key")


def check_websocket_origin(exchange: Exchange, origins: tuple[str, ...]) -> None:
    """Raise `Forbidden` for a web page of another site. Browsers do not apply CORS to WebSockets, so the server must."""
    origin = exchange.headers.get("origin")
    if origin is None or "*" in origins or origin in origins:
        return
    if origin.partition("://")[2] != exchange.headers.get("host"):
        raise Forbidden("this origin is not allowed", "add it to server.cors_origins")


def apply_cors(exchange: Exchange, origins: tuple[str, ...]) -> bool:
    """Add CORS headers if the request comes from an allowed origin. Return whether it does."""
    origin = exchange.headers.get("origin")
    if origin is None or not ("*" in origins or origin in origins):
        return False
    exchange.add_header("access-control-allow-origin", origin)
    exchange.add_header("vary", "origin")
    exchange.add_header("access-control-expose-headers", _EXPOSED_HEADERS)
    return True


def check_local_admin(exchange: Exchange, admin_token: str) -> None:
    """Raise `Forbidden` unless the request comes directly from this host with the token, even if `allow_without_key` is set.

    A proxy on this host may leave no trace, so the address alone proves nothing.
    """
    if is_proxied(exchange.headers) or not _is_local_peer(exchange):
        raise Forbidden(
            "without an API key only local clients may manage the server", "create a key: bay keys create NAME --admin"
        )
    check_origin(exchange, (), keyless=True)
    check_admin_token(exchange.headers, admin_token)


def is_proxied(headers: Mapping[str, str]) -> bool:
    """Return whether a proxy says that it passed the request on. Not every proxy does."""
    return any(name in headers for name in _PROXY_HEADERS)


def _is_local_peer(exchange: Exchange) -> bool:
    return exchange.peer == "local" or is_loopback(exchange.peer.rsplit(":", 1)[0])


def _is_local_name(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").lower()
    return name in ("", "localhost") or name.endswith(".localhost") or is_loopback(name)


@lru_cache(maxsize=4096)  # for every request: its peer and its Host
def is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)  # IPv4 clients of a dual-stack socket
    return bool((mapped or parsed).is_loopback)
