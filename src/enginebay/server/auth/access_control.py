"""Who may ask: keys and their scopes, rate limits, and web pages of other sites."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from enginebay.errors import Forbidden, RateLimited, Unauthorized
from enginebay.server.api.routes import Route
from enginebay.server.auth.api_keys import ApiKey, Keyring
from enginebay.server.http.exchange import Exchange
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import ServerContext

_EXPOSED_HEADERS = (
    "x-request-id, x-enginebay-engine, x-enginebay-fallback, x-enginebay-translated, x-enginebay-truncated, retry-after, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)


def authenticate(keyring: Keyring, headers: Mapping[str, str], scope: str) -> ApiKey | None:
    """The key of a request, when keys are asked for at all."""
    if not keyring:
        return None
    if not keyring.keys:
        raise Unauthorized(
            "no API key is left, and nobody gets in without one",
            "make one with `bay keys create NAME`, and have the server read it with SIGHUP",
        )
    kind, _, presented = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not presented.strip():
        raise Unauthorized("an API key is needed", "send it as `Authorization: Bearer KEY`")
    key = keyring.find(presented.strip())
    if key is None:
        raise Unauthorized("the API key is not known", "check it, or make one with `bay keys create`")
    if scope != "any" and scope not in key.scopes:
        raise Forbidden(f"the API key lacks the scope {scope}", "use a key that has it")
    return key


async def admit(context: ServerContext, keyring: Keyring, request_context: RequestContext, route: Route) -> None:
    """Raises when the request may not go on; notes its key and its rate limits otherwise."""
    if route.scope is None:
        return
    key = request_context.key = authenticate(keyring, request_context.exchange.headers, route.scope)
    if key is None and route.scope == "admin":
        check_local_admin(request_context.exchange)
    if key is None or not route.rate_limited or (key.requests_per_minute is None and key.tokens_per_minute is None):
        return
    verdict = await context.rate_limits.take(key)
    for name, value in verdict.headers.items():
        request_context.exchange.add_header(name, value)
    if not verdict.allowed:
        context.metrics.rate_limited.child(key.name).inc()
        raise RateLimited(
            "this API key has used up its share for now", f"try again in {verdict.retry_after_s:.1f} s",
            retry_after_s=verdict.retry_after_s,
        )  # fmt: skip


def check_origin(exchange: Exchange, origins: tuple[str, ...], keyless: bool) -> None:
    """Without keys only this host may ask, and pages of other sites must not do so through a visitor's browser.

    A page is known by its Origin; one that has its own name point to this host, by the Host it asks for.
    """
    if keyless and not _is_local_peer(exchange):
        raise Forbidden("without an API key only this host itself may ask", "make a key: bay keys create NAME")
    if apply_cors(exchange, origins):
        return
    origin = exchange.headers.get("origin")
    if origin is not None and keyless and origin.partition("://")[2] != exchange.headers.get("host"):
        raise Forbidden("pages of this origin may not ask", "allow it with server.cors_origins")
    if keyless and not _is_local_name(exchange.headers.get("host", "")):
        raise Forbidden("without an API key only this host itself may be asked", "use localhost, or make a key")


def apply_cors(exchange: Exchange, origins: tuple[str, ...]) -> bool:
    """Whether a page of an allowed origin asks, which may then read the answer."""
    origin = exchange.headers.get("origin")
    if origin is None or not ("*" in origins or origin in origins):
        return False
    exchange.add_header("access-control-allow-origin", origin)
    exchange.add_header("vary", "origin")
    exchange.add_header("access-control-expose-headers", _EXPOSED_HEADERS)
    return True


def check_local_admin(exchange: Exchange) -> None:
    """Without keys, only this host manages the server: no other one, no proxy, no page, whoever may ask for text."""
    passed_on = any(name in exchange.headers for name in ("forwarded", "x-forwarded-for", "via"))
    if passed_on or not _is_local_peer(exchange):
        raise Forbidden(
            "without an API key the server is managed from its own host only", "make one: bay keys create NAME --admin"
        )
    check_origin(exchange, (), keyless=True)


def _is_local_peer(exchange: Exchange) -> bool:
    return exchange.peer == "local" or is_loopback(exchange.peer.rsplit(":", 1)[0])


def _is_local_name(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").lower()
    return name in ("", "localhost") or name.endswith(".localhost") or is_loopback(name)


def is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)  # how a socket for both families shows the old one
    return bool((mapped or found).is_loopback)
