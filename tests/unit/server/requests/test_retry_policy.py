from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay import errors
from enginebay.config.sections.config_keys import FALLBACK_TRIGGERS
from enginebay.config.sections.server_section import ServerLimits
from enginebay.fleet.routing.variants import ModelRoute
from enginebay.server.http.exchange import Exchange
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.retry_policy import classify_fallback_trigger, should_retry
from enginebay.server.sessions.model_catalog import CatalogEntry


class _Connection:
    peer = "test"

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def common_headers(self) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        self.writes.append(data)


def make_request_context(
    kinds: tuple[str, ...] = ("vllm",), triggers: tuple[str, ...] = FALLBACK_TRIGGERS
) -> RequestContext:
    exchange = Exchange(_Connection(), "POST", "/v1/completions", {})  # type: ignore[arg-type]
    request_context = RequestContext(exchange, "completions", "req")
    names = ("m", *(f"m@{kind}" for kind in kinds[1:]))
    request_context.catalog_entry = CatalogEntry(ModelRoute("m", names, kinds, fallback_on=triggers), ServerLimits(), 1)
    return request_context


CASES: list[tuple[errors.EnginebayError, str | None]] = [
    (errors.EngineMissing("x"), "unavailable"),
    (errors.CrashLoop("x"), "unavailable"),
    (errors.Unreachable("x"), "unavailable"),
    (errors.UnknownArchitecture("x"), "architecture"),
    (errors.LoadFailed("x"), "load"),
    (errors.OutOfMemory("x"), "load"),
    (errors.ModelInvalid("x"), "load"),
    (errors.FetchFailed("x"), "load"),
    (errors.Offline("x"), "load"),
    (errors.Overloaded("x"), "queue"),
    (errors.ContextOverflow("x"), "context"),
    (errors.Unsupported("x"), "capability"),
    (errors.RateLimited("x"), None),
    (errors.InvalidRequest("x"), None),
    (errors.PoisonRequest("x"), None),
    (errors.EngineFailed("x"), None),
    (errors.TimedOut("x"), None),
    (errors.Cancelled("x"), None),
]


@pytest.mark.parametrize(("error", "expected"), CASES, ids=lambda case: getattr(case, "kind", str(case)))
def test_each_error_falls_back_on_its_trigger(error: errors.EnginebayError, expected: str | None) -> None:
    assert classify_fallback_trigger(error) == expected
    chained, alone = make_request_context(("vllm", "llamacpp")), make_request_context()
    assert should_retry(chained, error) is (expected is not None)
    assert not should_retry(alone, error)
    if expected is not None:
        assert chained.variant_index == 1 and chained.fallback == f"llamacpp instead of vllm: {expected}"
        assert chained.first_error is error


def test_every_trigger_has_an_error() -> None:
    assert {expected for _, expected in CASES if expected} == set(FALLBACK_TRIGGERS)


def test_only_declared_triggers_count() -> None:
    request_context = make_request_context(("vllm", "llamacpp"), triggers=("load",))
    assert not should_retry(request_context, errors.ContextOverflow("x"))
    assert should_retry(request_context, errors.LoadFailed("x"))
    assert not should_retry(request_context, errors.LoadFailed("x")), "the chain has an end"


def test_a_draining_worker_is_retried_until_the_deadline() -> None:
    request_context = make_request_context()
    session: Any = SimpleNamespace(draining=False)
    request_context.session = session
    assert should_retry(request_context, errors.Draining("x")) and session.draining
    request_context.wait_deadline = time.monotonic() - 1
    assert not should_retry(request_context, errors.Draining("x"))


def test_worker_deaths_are_retried_at_most_twice() -> None:
    request_context = make_request_context()
    tries = [should_retry(request_context, errors.WorkerDied("x")) for _ in range(5)]
    assert tries == [True, True, False, False, False]
    chained = make_request_context(("vllm", "llamacpp"))
    for _ in range(3):
        assert should_retry(chained, errors.WorkerDied("x"))
    assert chained.variant_index == 1 and chained.worker_deaths == 0


def test_a_worker_death_after_the_load_starts_a_new_wait() -> None:
    request_context = make_request_context()
    request_context.wait_deadline = time.monotonic() - 1  # spent on the load that came before
    assert (
        should_retry(request_context, errors.WorkerDied("while it loaded"))
        and request_context.wait_deadline is not None
    )
    session: Any = SimpleNamespace(draining=False)
    request_context.session = session
    assert (
        should_retry(request_context, errors.WorkerDied("while it answered")) and request_context.wait_deadline is None
    )


def test_no_retry_once_bytes_were_sent() -> None:
    request_context = make_request_context(("vllm", "llamacpp"))
    request_context.exchange.start(200, "text/event-stream")
    assert not should_retry(request_context, errors.WorkerDied("x")) and not should_retry(
        request_context, errors.Draining("x")
    )


def test_progress_comments_do_not_prevent_a_retry() -> None:
    request_context = make_request_context()
    request_context.write_comment("loading")
    assert request_context.can_still_retry and should_retry(request_context, errors.WorkerDied("x"))


def test_no_retry_after_a_disconnect() -> None:
    request_context = make_request_context()
    request_context.exchange.closed = True
    assert not should_retry(request_context, errors.WorkerDied("x"))
