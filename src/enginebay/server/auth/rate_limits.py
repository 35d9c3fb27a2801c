"""Rate limits per API key: a token bucket for requests and one for tokens. Pure.

A bucket holds one minute's worth, so an idle key may burst. Token usage is known only after a request: a request needs
one token left, and its usage is charged at the end. The level may go below zero; later requests wait until it recovers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from enginebay.server.auth.api_keys import ApiKey

_MINUTE_S = 60.0
# A client that waits exactly `retry_after_s` must not fail by a rounding error.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class RateLimitDecision:
    """Whether a request may proceed, and if not, when to retry. `headers` go on the response in either case."""

    allowed: bool
    retry_after_s: float
    headers: Mapping[str, str]


_UNLIMITED = RateLimitDecision(True, 0.0, MappingProxyType({}))


class _TokenBucket:
    """Holds up to `limit` units and refills `limit` per minute. Starts full."""

    __slots__ = ("level", "limit", "refilled_at")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self.level = float(limit)
        self.refilled_at = now

    def refill(self, now: float) -> None:
        if now > self.refilled_at:  # a clock that steps back must not refill twice
            self.level = min(float(self.limit), self.level + (now - self.refilled_at) * self.limit / _MINUTE_S)
            self.refilled_at = now

    def seconds_until(self, level: float) -> float:
        return max(0.0, level - self.level) * _MINUTE_S / self.limit

    def add_headers(self, headers: dict[str, str], unit: str) -> None:
        headers[f"x-ratelimit-limit-{unit}"] = str(self.limit)
        headers[f"x-ratelimit-remaining-{unit}"] = str(max(0, math.floor(self.level + _ROUNDING)))
        headers[f"x-ratelimit-reset-{unit}"] = _format_reset(self.seconds_until(self.limit))


class RateLimiter:
    """The buckets of all keys. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: dict[str, _TokenBucket] = {}
        self._tokens: dict[str, _TokenBucket] = {}

    def take(self, key: ApiKey) -> RateLimitDecision:
        """Return whether a request of this key is allowed, and count it if so."""
        if key.requests_per_minute is None and key.tokens_per_minute is None:
            return _UNLIMITED
        now = self._clock()
        requests = _get_bucket(self._requests, key.name, key.requests_per_minute, now)
        tokens = _get_bucket(self._tokens, key.name, key.tokens_per_minute, now)
        buckets = [bucket for bucket in (requests, tokens) if bucket is not None]
        wait_s = max(bucket.seconds_until(1.0) if bucket.level < 1.0 - _ROUNDING else 0.0 for bucket in buckets)
        if wait_s == 0.0 and requests is not None:
            requests.level -= 1.0
        headers: dict[str, str] = {}
        for bucket, unit in ((requests, "requests"), (tokens, "tokens")):
            if bucket is not None:
                bucket.add_headers(headers, unit)
        return RateLimitDecision(wait_s == 0.0, wait_s, headers)

    def charge(self, key: ApiKey, tokens: int) -> None:
        """Charge the tokens that a request of this key used."""
        bucket = (
            _get_bucket(self._tokens, key.name, key.tokens_per_minute, self._clock()) if key.tokens_per_minute else None
        )
        if bucket is not None:
            bucket.level -= tokens


def _get_bucket(buckets: dict[str, _TokenBucket], name: str, limit: int | None, now: float) -> _TokenBucket | None:
    """Return the key's refilled bucket; a new one if there was none or the key's limit has changed."""
    if limit is None:
        return None
    bucket = buckets.get(name)
    if bucket is None or bucket.limit != limit:
        bucket = buckets[name] = _TokenBucket(limit, now)
    bucket.refill(now)
    return bucket


def _format_reset(value: float) -> str:
    """Format as OpenAI does, such as "1.5s". Rounded up, so that waiting this long is enough."""
    return f"{math.ceil(value * 1000 - _ROUNDING) / 1000:g}s" if value < 1000 else f"{math.ceil(value)}s"
