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

    def common(self) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        self.writes.append(data)


def call_of(kinds: tuple[str, ...] = ("vllm",), triggers: tuple[str, ...] = FALLBACK_TRIGGERS) -> RequestContext:
    exchange = Exchange(_Connection(), "POST", "/v1/completions", {})  # type: ignore[arg-type]
    call = RequestContext(exchange, "completions", "req")
    names = ("m", *(f"m@{kind}" for kind in kinds[1:]))
    call.catalog_entry = CatalogEntry(ModelRoute("m", names, kinds, fallback_on=triggers), ServerLimits(), 1)
    return call


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
    (errors.EngineFailed("x"), None),
    (errors.TimedOut("x"), None),
    (errors.Cancelled("x"), None),
]


@pytest.mark.parametrize(("error", "expected"), CASES, ids=lambda one: getattr(one, "kind", str(one)))
def test_what_each_error_means_for_a_chain(error: errors.EnginebayError, expected: str | None) -> None:
    assert classify_fallback_trigger(error) == expected
    chained, alone = call_of(("vllm", "llamacpp")), call_of()
    assert should_retry(chained, error) is (expected is not None)
    assert not should_retry(alone, error)
    if expected is not None:
        assert chained.variant_index == 1 and chained.fallback == f"llamacpp instead of vllm: {expected}"
        assert chained.first_error is error


def test_every_trigger_can_be_pulled() -> None:
    assert {expected for _, expected in CASES if expected} == set(FALLBACK_TRIGGERS)


def test_only_declared_triggers_count() -> None:
    call = call_of(("vllm", "llamacpp"), triggers=("load",))
    assert not should_retry(call, errors.ContextOverflow("x"))
    assert should_retry(call, errors.LoadFailed("x"))
    assert not should_retry(call, errors.LoadFailed("x")), "the chain has an end"


def test_a_refusal_at_the_door_is_no_failure() -> None:
    call = call_of()
    served: Any = SimpleNamespace(refused=False)
    call.session = served
    assert should_retry(call, errors.Draining("x")) and served.refused
    call.wait_deadline = time.monotonic() - 1
    assert not should_retry(call, errors.Draining("x"))


def test_a_request_does_not_end_more_than_a_few_workers() -> None:
    call = call_of()
    tries = [should_retry(call, errors.WorkerDied("x")) for _ in range(5)]
    assert tries == [True, True, True, False, False]
    chained = call_of(("vllm", "llamacpp"))
    for _ in range(4):
        assert should_retry(chained, errors.WorkerDied("x"))
    assert chained.variant_index == 1 and chained.worker_deaths == 0


def test_a_death_after_the_model_was_there_begins_a_new_wait() -> None:
    call = call_of()
    call.wait_deadline = time.monotonic() - 1  # spent on the load that came before
    assert should_retry(call, errors.WorkerDied("while it loaded")) and call.wait_deadline is not None
    served: Any = SimpleNamespace(refused=False)
    call.session = served
    assert should_retry(call, errors.WorkerDied("while it answered")) and call.wait_deadline is None


def test_never_after_something_was_sent() -> None:
    call = call_of(("vllm", "llamacpp"))
    call.exchange.start(200, "text/event-stream")
    assert not should_retry(call, errors.WorkerDied("x")) and not should_retry(call, errors.Draining("x"))


def test_comments_about_a_wait_are_nothing_that_was_sent() -> None:
    call = call_of()
    call.write_comment("loading")
    assert call.nothing_sent and should_retry(call, errors.WorkerDied("x"))


def test_nobody_is_left_to_answer() -> None:
    call = call_of()
    call.exchange.closed = True
    assert not should_retry(call, errors.WorkerDied("x"))
