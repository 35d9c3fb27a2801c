"""Who is refused after worker deaths: the request that kills workers, and nobody beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.errors import Draining, EngineFailed, PoisonRequest, WorkerDied
from enginebay.server.requests import crash_guard
from enginebay.server.requests.crash_guard import CrashGuard, SuspectTrial
from enginebay.server.requests.suspect_table import SuspectEvent
from enginebay.server.telemetry.server_metrics import ServerMetrics
from tests.unit.server.requests.test_retry_policy import make_request_context


class Gateway:
    def __init__(self, granted: bool = True) -> None:
        self.granted = granted
        self.active: list[str] = []
        self.events: list[SuspectEvent] = []

    async def begin_trial(self, variant: str, trial: str, urgent: bool = False, address: str = "") -> None:
        if not self.granted:
            await asyncio.sleep(60)
        self.active.append(trial)

    def end_trial(self, variant: str, trial: str) -> None:
        if trial in self.active:
            self.active.remove(trial)

    def share_suspect(self, event: SuspectEvent) -> None:
        self.events.append(event)


class Log:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def log_event(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})


def make_guard(gateway: Gateway | None = None) -> tuple[CrashGuard, Gateway, Log]:
    gateway, log = gateway or Gateway(), Log()
    return CrashGuard(gateway, ServerMetrics(), log), gateway, log  # type: ignore[arg-type]


def make_session(
    address: str, control_error: Exception | None = None, broken: bool = False, disconnected: bool = False
) -> Any:
    async def generate(request: Any) -> AsyncIterator[Any]:
        if control_error is not None:
            raise control_error
        yield None

    worker = SimpleNamespace(broken=broken, disconnected=disconnected, generate=generate)
    handle = SimpleNamespace(address=address, task="generate")
    client = SimpleNamespace(client=worker, handle=handle)
    return SimpleNamespace(client=client, supports=lambda name: True, passed_control=False)


def make_context() -> Any:
    request_context = make_request_context()
    request_context.variant, request_context.model = "m", "m"
    request_context.key = SimpleNamespace(name="team")  # type: ignore[assignment]
    return request_context


DIED = WorkerDied("the worker's connection broke")


async def run(guard: CrashGuard, digest: bytes, worker: Any, error: Any) -> Any:
    """One attempt on this worker. Return what it ends with."""
    request_context = make_context()
    trial = guard.find_trial(request_context, digest) if guard.table else None
    if trial is not None:
        await trial.begin(worker)
    worker.client.client.broken = isinstance(error, WorkerDied)
    result = guard.settle(request_context, worker, trial, error, lambda: digest)
    if trial is not None:
        trial.end()
    return result


async def test_a_request_that_dies_alone_after_another_death_is_refused() -> None:
    guard, gateway, log = make_guard()
    assert await run(guard, b"p", make_session("w1"), DIED) is DIED
    assert isinstance(await run(guard, b"p", make_session("w2"), DIED), PoisonRequest)
    assert gateway.events[-1][:4] == ("refused", b"p", "m", ("w1", "w2")) and not gateway.active
    [line] = log.events
    assert line["key"] == "team" and line["deaths"] == 2
    with pytest.raises(PoisonRequest):
        guard.find_trial(make_context(), b"p")


async def test_bystanders_are_tried_cleared_and_never_refused() -> None:
    guard, gateway, _ = make_guard()
    for digest in (b"p", b"h1", b"h2"):
        await run(guard, digest, make_session("w1"), DIED)
    assert await run(guard, b"h1", make_session("w2"), None) is None
    assert isinstance(await run(guard, b"p", make_session("w2"), DIED), PoisonRequest)
    assert await run(guard, b"h2", make_session("w3"), None) is None
    assert [event.digest for event in gateway.events if event.kind == "cleared"] == [b"h1", b"h2"]
    assert guard.find_trial(make_context(), b"h2") is None


async def test_a_request_that_could_not_run_alone_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of deaths in company proves nothing."""
    monkeypatch.setattr(crash_guard, "_WAIT_S", (0.01, 0.01))
    guard, gateway, _ = make_guard(Gateway(granted=False))
    for number in range(4):
        assert await run(guard, b"h", make_session(f"w{number}"), DIED) is DIED
    assert not [event for event in gateway.events if event.kind == "refused"]


async def test_an_engine_that_fails_without_the_suspect_is_at_fault() -> None:
    guard, gateway, _ = make_guard()
    await run(guard, b"h", make_session("w1"), DIED)
    with pytest.raises(WorkerDied):
        await run(guard, b"h", make_session("w2", control_error=DIED), DIED)
    assert len(guard.table.get_deaths(b"h")) == 1 and not gateway.active


@pytest.mark.parametrize("state", ["broken", "disconnected"])
async def test_a_worker_that_died_before_the_trial_is_not_held_against_the_suspect(state: str) -> None:
    guard, gateway, _ = make_guard()
    await run(guard, b"h", make_session("w1"), DIED)
    with pytest.raises(Draining):
        await run(guard, b"h", make_session("w2", **{state: True}), None)
    assert len(guard.table.get_deaths(b"h")) == 1 and not gateway.active


async def test_other_errors_say_nothing_about_the_request() -> None:
    guard, gateway, _ = make_guard()
    error = EngineFailed("x")
    assert await run(guard, b"h", make_session("w1"), error) is error and not guard.table and not gateway.events


async def test_a_long_answer_does_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_guard, "_ALONE_S", (0.01, 0.01))
    gateway = Gateway()
    trial = SuspectTrial(gateway, "m", b"h", 1)
    assert await trial.begin(make_session("w1")) and gateway.active
    first_token_at = 0.0
    trial.watch(lambda: first_token_at)
    await asyncio.sleep(0.15)
    assert trial.alone, "without any output it may still be the cause"
    first_token_at = 1.0
    async with asyncio.timeout(30):
        while trial.alone:
            await asyncio.sleep(0.01)
    assert not gateway.active
    trial.end()
