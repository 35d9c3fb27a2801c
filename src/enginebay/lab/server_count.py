"""What a bay server has counted of its requests, from /metrics: whether this client was its only one."""

from __future__ import annotations

from enginebay.lab.api import ServerUnusable, ask
from enginebay.lab.client.order import Target

_PATH = "/metrics"
_FAMILY = "enginebay_request_duration_seconds"
_TIMEOUT_S = 10.0


def request_seconds(target: Target) -> float | None:
    """How long all requests that have ended were with the server, added up. None: it does not tell."""
    if not target.ours:
        return None
    try:
        status, found = ask(target, _PATH, timeout_s=_TIMEOUT_S)
    except ServerUnusable:
        return None
    return read_sum(found) if status == 200 and isinstance(found, str) else None


def read_sum(text: str) -> float | None:
    """The sum of the histogram over all models; 0 where it is known and nobody has asked yet. Pure."""
    lines = text.splitlines()
    if f"# TYPE {_FAMILY} histogram" not in lines:
        return None
    own = [line for line in lines if line.startswith((f"{_FAMILY}_sum{{", f"{_FAMILY}_sum "))]
    try:
        return sum(float(line.rpartition(" ")[2]) for line in own)
    except ValueError:
        return None


def spent_s(before_s: float | None, after_s: float | None) -> float | None:
    """Between two readings; None where one is missing or the server began anew in between. Pure."""
    return None if before_s is None or after_s is None or after_s < before_s else after_s - before_s
