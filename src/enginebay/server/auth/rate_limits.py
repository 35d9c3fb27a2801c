"""How much one API key may ask for: a bucket of requests and one of tokens, each filled evenly over time. Pure.

A bucket holds one minute's worth, so a quiet key may ask in a burst. Tokens are known only afterwards: a request needs
one token left, and what it used is charged when it is known, below zero if need be, which the next requests wait off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from enginebay.server.auth.api_keys import ApiKey

_MINUTE_S = 60.0
# A client that waits exactly as long as it was told must not fail by a rounding error.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class RateLimitDecision:
    """May this request go on? If not, when to come back. `headers` belong on the answer in either case."""

    allowed: bool
    retry_after_s: float
    headers: Mapping[str, str]


_UNLIMITED = RateLimitDecision(True, 0.0, MappingProxyType({}))


class _TokenBucket:
    """Up to `limit` units, refilled by `limit` in a minute. Starts full."""

    __slots__ = ("level", "limit", "refilled_at")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self.level = float(limit)
        self.refilled_at = now

    def refill(self, now: float) -> None:
        if now > self.refilled_at:  # a clock that steps back must not count the same time twice
            self.level = min(float(self.limit), self.level + (now - self.refilled_at) * self.limit / _MINUTE_S)
            self.refilled_at = now

    def seconds_until(self, level: float) -> float:
        return max(0.0, level - self.level) * _MINUTE_S / self.limit

    def add_headers(self, headers: dict[str, str], what: str) -> None:
        headers[f"x-ratelimit-limit-{what}"] = str(self.limit)
        headers[f"x-ratelimit-remaining-{what}"] = str(max(0, math.floor(self.level + _ROUNDING)))
        headers[f"x-ratelimit-reset-{what}"] = _format_seconds(self.seconds_until(self.limit))


class RateLimiter:
    """The buckets of all keys. Not for several threads at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: dict[str, _TokenBucket] = {}
        self._tokens: dict[str, _TokenBucket] = {}

    def take(self, key: ApiKey) -> RateLimitDecision:
        """One request, counted if it is allowed."""
        if key.requests_per_minute is None and key.tokens_per_minute is None:
            return _UNLIMITED
        now = self._clock()
        requests = _get_bucket(self._requests, key.name, key.requests_per_minute, now)
        tokens = _get_bucket(self._tokens, key.name, key.tokens_per_minute, now)
        wait_s = max(one.seconds_until(1.0) if _is_empty(one) else 0.0 for one in (requests, tokens) if one is not None)
        if wait_s == 0.0 and requests is not None:
            requests.level -= 1.0
        headers: dict[str, str] = {}
        for one, what in ((requests, "requests"), (tokens, "tokens")):
            if one is not None:
                one.add_headers(headers, what)
        return RateLimitDecision(wait_s == 0.0, wait_s, headers)

    def charge(self, key: ApiKey, tokens: int) -> None:
        """Tokens that a request of this key has used."""
        bucket = (
            _get_bucket(self._tokens, key.name, key.tokens_per_minute, self._clock()) if key.tokens_per_minute else None
        )
        if bucket is not None:
            bucket.level -= tokens


def _get_bucket(buckets: dict[str, _TokenBucket], name: str, limit: int | None, now: float) -> _TokenBucket | None:
    """The key's bucket, up to date; a new one when there was none or the key's limit has changed."""
    if limit is None:
        return None
    found = buckets.get(name)
    if found is None or found.limit != limit:
        found = buckets[name] = _TokenBucket(limit, now)
    found.refill(now)
    return found


def _is_empty(bucket: _TokenBucket) -> bool:
    return bucket.level < 1.0 - _ROUNDING


def _format_seconds(value: float) -> str:
    """As OpenAI writes it: "1.5s", rounded up so that waiting so long is enough."""
    return f"{math.ceil(value * 1000 - _ROUNDING) / 1000:g}s" if value < 1000 else f"{math.ceil(value)}s"
