from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay import errors
from enginebay.config.keys import TRIGGERS
from enginebay.config.server import Limits
from enginebay.fleet.variants import Offering
from enginebay.server.call import Call
from enginebay.server.http.exchange import Exchange
from enginebay.server.offers import Offer
from enginebay.server.retrying import once_more, trigger


class _Connection:
    peer = "test"

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def common(self) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        self.writes.append(data)


def call_of(kinds: tuple[str, ...] = ("vllm",), triggers: tuple[str, ...] = TRIGGERS) -> Call:
    exchange = Exchange(_Connection(), "POST", "/v1/completions", {})  # type: ignore[arg-type]
    call = Call(exchange, "completions", "req")
    names = ("m", *(f"m@{kind}" for kind in kinds[1:]))
    call.offer = Offer(Offering("m", names, kinds, triggers=triggers), Limits(), 1)
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
    assert trigger(error) == expected
    chained, alone = call_of(("vllm", "llamacpp")), call_of()
    assert once_more(chained, error) is (expected is not None)
    assert not once_more(alone, error)
    if expected is not None:
        assert chained.variant == 1 and chained.fallback == f"llamacpp instead of vllm: {expected}"
        assert chained.first_error is error


def test_every_trigger_can_be_pulled() -> None:
    assert {expected for _, expected in CASES if expected} == set(TRIGGERS)


def test_only_declared_triggers_count() -> None:
    call = call_of(("vllm", "llamacpp"), triggers=("load",))
    assert not once_more(call, errors.ContextOverflow("x"))
    assert once_more(call, errors.LoadFailed("x"))
    assert not once_more(call, errors.LoadFailed("x")), "the chain has an end"


def test_a_refusal_at_the_door_is_no_failure() -> None:
    call = call_of()
    served: Any = SimpleNamespace(refused=False)
    call.served = served
    assert once_more(call, errors.Draining("x")) and served.refused
    call.give_up_at = time.monotonic() - 1
    assert not once_more(call, errors.Draining("x"))


def test_a_request_does_not_end_more_than_a_few_workers() -> None:
    call = call_of()
    tries = [once_more(call, errors.WorkerDied("x")) for _ in range(5)]
    assert tries == [True, True, True, False, False]
    chained = call_of(("vllm", "llamacpp"))
    for _ in range(4):
        assert once_more(chained, errors.WorkerDied("x"))
    assert chained.variant == 1 and chained.deaths == 0


def test_a_death_after_the_model_was_there_begins_a_new_wait() -> None:
    call = call_of()
    call.give_up_at = time.monotonic() - 1  # spent on the load that came before
    assert once_more(call, errors.WorkerDied("while it loaded")) and call.give_up_at is not None
    served: Any = SimpleNamespace(refused=False)
    call.served = served
    assert once_more(call, errors.WorkerDied("while it answered")) and call.give_up_at is None


def test_never_after_something_was_sent() -> None:
    call = call_of(("vllm", "llamacpp"))
    call.exchange.start(200, "text/event-stream")
    assert not once_more(call, errors.WorkerDied("x")) and not once_more(call, errors.Draining("x"))


def test_comments_about_a_wait_are_nothing_that_was_sent() -> None:
    call = call_of()
    call.comment("loading")
    assert call.untouched and once_more(call, errors.WorkerDied("x"))


def test_nobody_is_left_to_answer() -> None:
    call = call_of()
    call.exchange.closed = True
    assert not once_more(call, errors.WorkerDied("x"))
