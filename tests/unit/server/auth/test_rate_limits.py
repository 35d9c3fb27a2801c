"""Token buckets with an injected clock: bursts, refill, debt, headers, and the bound over any window."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.server.auth.api_keys import ApiKey
from enginebay.server.auth.rate_limits import RateLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def key(requests: int | None = None, tokens: int | None = None, name: str = "k") -> ApiKey:
    return ApiKey(name, b"", requests_per_minute=requests, tokens_per_minute=tokens)


def test_a_key_without_limits_costs_nothing(clock: Clock) -> None:
    rates = RateLimiter(clock)
    rates.charge(key(), 10**9)
    first, second = rates.take(key()), rates.take(key(name="other"))
    assert first is second
    assert (first.allowed, first.retry_after_s, dict(first.headers)) == (True, 0.0, {})


def test_a_burst_then_one_by_one(clock: Clock) -> None:
    rates, limited = RateLimiter(clock), key(requests=60)
    assert [rates.take(limited).allowed for _ in range(61)] == [True] * 60 + [False]
    assert rates.take(limited).retry_after_s == pytest.approx(1.0)
    clock.now += 0.5
    assert rates.take(limited).retry_after_s == pytest.approx(0.5)
    clock.now += 0.5
    assert rates.take(limited).allowed
    assert not rates.take(limited).allowed


def test_a_bucket_never_holds_more_than_a_minute(clock: Clock) -> None:
    rates, limited = RateLimiter(clock), key(requests=3)
    rates.take(limited)
    clock.now += 10_000
    assert [rates.take(limited).allowed for _ in range(4)] == [True, True, True, False]


def test_tokens_are_charged_afterwards_and_may_go_into_debt(clock: Clock) -> None:
    rates, limited = RateLimiter(clock), key(tokens=600)
    assert rates.take(limited).allowed
    rates.charge(limited, 1200)
    refused = rates.take(limited)
    assert not refused.allowed
    assert refused.retry_after_s == pytest.approx(60.1)  # 600 below zero, and one token more
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    clock.now += refused.retry_after_s
    assert rates.take(limited).allowed


def test_a_refused_request_is_not_counted(clock: Clock) -> None:
    rates, limited = RateLimiter(clock), key(requests=2, tokens=60)
    rates.charge(limited, 60)
    assert [rates.take(limited).allowed for _ in range(5)] == [False] * 5
    clock.now += 1
    assert rates.take(limited).headers["x-ratelimit-remaining-requests"] == "1"


def test_the_longer_of_two_waits_is_reported(clock: Clock) -> None:
    rates, limited = RateLimiter(clock), key(requests=1, tokens=60)
    rates.take(limited)
    rates.charge(limited, 60)
    assert rates.take(limited).retry_after_s == pytest.approx(60)


def test_headers(clock: Clock) -> None:
    rates, limited = RateLimiter(clock), key(requests=40, tokens=1000)
    assert rates.take(limited).headers == {
        "x-ratelimit-limit-requests": "40",
        "x-ratelimit-remaining-requests": "39",
        "x-ratelimit-reset-requests": "1.5s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "1000",
        "x-ratelimit-reset-tokens": "0s",
    }
    rates.charge(limited, 1)
    assert rates.take(limited).headers["x-ratelimit-reset-tokens"] == "0.06s"
    assert set(rates.take(key(requests=1, name="r")).headers) == {
        f"x-ratelimit-{name}-requests" for name in ("limit", "remaining", "reset")
    }


def test_keys_do_not_share_buckets(clock: Clock) -> None:
    rates = RateLimiter(clock)
    assert rates.take(key(requests=1, name="a")).allowed
    assert rates.take(key(requests=1, name="b")).allowed
    assert not rates.take(key(requests=1, name="a")).allowed


def test_a_changed_limit_applies_at_once(clock: Clock) -> None:
    rates, limited = RateLimiter(clock), key(requests=1)
    rates.take(limited)
    assert rates.take(replace(limited, requests_per_minute=5)).headers["x-ratelimit-remaining-requests"] == "4"


def test_a_clock_that_steps_back_gives_nothing_away(clock: Clock) -> None:
    rates, limited = RateLimiter(clock), key(requests=1)
    rates.take(limited)
    for _ in range(10):
        clock.now -= 50
        assert not rates.take(limited).allowed
        clock.now += 50
        assert not rates.take(limited).allowed


gaps = st.lists(st.floats(0, 90, allow_nan=False), min_size=1, max_size=40)


@given(st.integers(1, 40), gaps)
def test_over_any_window_no_more_than_capacity_and_refill(limit: int, waits: list[float]) -> None:
    clock = Clock()
    rates, limited = RateLimiter(clock), key(requests=limit)
    allowed_at: list[float] = []
    for wait in waits:
        clock.now += wait
        allowed_at += [clock.now for _ in range(limit // 2 + 2) if rates.take(limited).allowed]
    for i, start in enumerate(allowed_at):
        for j in range(i, len(allowed_at), 7):
            assert j - i + 1 <= limit + limit / 60 * (allowed_at[j] - start) + 1e-3


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**7))
def test_a_client_that_waits_retry_after_is_allowed(requests: int, tokens: int, used: int) -> None:
    clock = Clock()
    rates, limited = RateLimiter(clock), key(requests=requests, tokens=tokens)
    rates.take(limited)
    rates.charge(limited, used)
    decision = rates.take(limited)
    assert decision.allowed == (decision.retry_after_s == 0)
    clock.now += decision.retry_after_s
    assert decision.allowed or rates.take(limited).allowed
