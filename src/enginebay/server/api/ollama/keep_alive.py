"""`keep_alive`: how long a model stays loaded after a request, for callers that may decide it."""

from __future__ import annotations

import math
import re
from contextlib import suppress

from enginebay.errors import EnginebayError, Forbidden, InvalidRequest
from enginebay.server.api.ollama.schemas import KeepAlive
from enginebay.server.auth.access_control import is_proxied
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import ServerContext

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ns|us|µs|ms|s|m|h)", re.ASCII)
_DURATION = re.compile(rf"[+-]?(?:{_PART.pattern})+", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,12}(?:\.\d{1,9})?", re.ASCII)
_HINT = 'use seconds, or a duration such as "5m"; 0: unload it when idle, -1: keep it'
FORBIDDEN = "needs a key with the scope admin, since it affects other clients"


def parse_keep_alive(value: KeepAlive) -> float:
    """Return the seconds, or infinity for a negative duration. Raise `InvalidRequest`."""
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            seconds = float(text)
        elif _DURATION.fullmatch(text):
            sign = -1 if text.startswith("-") else 1
            seconds = sign * sum(float(amount) * _UNITS_S[unit] for amount, unit in _PART.findall(text))
        else:
            raise InvalidRequest(f"keep_alive is {value[:40]!r}", _HINT, param="keep_alive")
    else:
        seconds = value
    return math.inf if seconds < 0 else seconds


def may_manage(context: ServerContext, request_context: RequestContext) -> bool:
    """Return whether the caller may unload models: with an admin key, or directly from this host if the server has no keys."""
    key = request_context.key
    if key is not None:
        return "admin" in key.scopes
    return not context.config.allow_without_key and not is_proxied(request_context.exchange.headers)


class KeepAlivePlan:
    """What a request asks for. Ignored, and named in the header, if the caller may not set it."""

    def __init__(self, context: ServerContext, request_context: RequestContext, value: KeepAlive | None) -> None:
        self._context = context
        self._request_context = request_context
        self.seconds = None if value is None else parse_keep_alive(value)
        self._allowed = may_manage(context, request_context)
        if self.seconds is not None and not self._allowed:
            request_context.ignored["keep_alive"] = FORBIDDEN

    async def apply(self) -> None:
        """Set it once the response has ended: before, an idle model could be unloaded under the request."""
        if self.seconds is None or not self._allowed:
            return
        idle_s = None if math.isinf(self.seconds) else self.seconds
        with suppress(EnginebayError):  # the response has been sent; a model that is gone needs no limit
            arguments = {"model": self._request_context.variant, "idle_s": idle_s}
            await self._context.fleet.run_admin_command("keep_alive", arguments)

    async def unload(self, model: str) -> None:
        """Unload the model. Raise `Forbidden` without the right to."""
        if not self._allowed:
            raise Forbidden(
                f"keep_alive {FORBIDDEN}", "use such a key, or `bay unload` on the server's host", param="keep_alive"
            )
        await self._context.fleet.run_admin_command("unload", {"model": model})
