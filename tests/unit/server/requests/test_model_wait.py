from __future__ import annotations

import asyncio
from typing import Any

import pytest

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import Cancelled, EnginebayError, EngineMissing, Overloaded
from enginebay.fleet.scheduling.wait_estimate import WaitEstimate
from enginebay.server.requests import model_wait
from enginebay.server.requests.model_wait import parse_wait_preference, wait_for_session
from enginebay.server.sessions.model_catalog import VariantConnector
from enginebay.server.telemetry.server_metrics import ServerMetrics
from tests.unit.server.requests.test_retry_policy import call_of


@pytest.mark.parametrize(
    ("header", "expected"),
    [("", 300.0), ("wait=0", 0.0), ("wait=10", 10.0), ("respond-async, wait=5", 5.0), ("wait=9999", 300.0),
     ("wait=-1", 300.0), ("wait=x", 300.0), ("nowait=3", 300.0)],
)  # fmt: skip
def test_how_long_a_client_would_wait(header: str, expected: float) -> None:
    assert parse_wait_preference(header, 300.0) == expected


class _Fleet:
    """Never gives what is wanted."""

    def __init__(self) -> None:
        self.wants = self.wishes = 0
        self.cancelled = 0

    async def want(self, name: str, patience_s: float | None = None, broken: str = "") -> Any:
        self.wants += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def look_ahead(self, name: str, *, wish: bool = False) -> WaitEstimate:
        self.wishes += wish
        return WaitEstimate(name, "loading", 12.4, 1)

    async def troubles(self) -> dict[str, EnginebayError]:
        raise NotImplementedError

    async def order(self, command: str, arguments: dict[str, Any]) -> Any:
        raise NotImplementedError


def _waiting(call: Any, fleet: _Fleet, *, stream: bool) -> Any:
    session = VariantConnector("m", "fake", ServerLimits(), 1)
    return wait_for_session(call, session, fleet, 300.0, stream, ServerLimits(), ServerMetrics())


async def test_who_does_not_want_to_wait_is_told_how_long_it_would_take() -> None:
    call, fleet = call_of(), _Fleet()
    call.exchange.headers["prefer"] = "wait=0"
    with pytest.raises(Overloaded) as refused:
        await _waiting(call, fleet, stream=False)
    assert refused.value.retry_after_s == 12.4 and "loading, about 12 s" in refused.value.message and not fleet.wants
    assert fleet.wishes == 1, "or nobody would ever load it"


async def test_who_does_not_want_to_wait_has_one_engine_of_a_chain_loaded() -> None:
    call, fleet = call_of(), _Fleet()
    call.exchange.headers["prefer"] = "wait=0"
    for error, wishes in ((EngineMissing("it is not there"), 1), (Overloaded("it is loading"), 1)):
        call.first_error = error
        with pytest.raises(Overloaded):
            await _waiting(call, fleet, stream=False)
        assert fleet.wishes == wishes


async def test_streams_are_told_meanwhile_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_wait, "_PROGRESS_INTERVAL_S", 0.01)
    for stream in (True, False):
        call, fleet = call_of(), _Fleet()
        task = asyncio.ensure_future(_waiting(call, fleet, stream=stream))
        async with asyncio.timeout(30):
            while stream and not call.wait_announced:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        told = b"".join(call.exchange._connection.writes)  # type: ignore[attr-defined]
        assert (b": m is loading, about 12 s" in told) is stream and call.wait_announced is stream
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        assert fleet.cancelled == 1


async def test_a_client_that_leaves_is_not_waited_for() -> None:
    call, fleet = call_of(), _Fleet()
    task = asyncio.ensure_future(_waiting(call, fleet, stream=False))
    await asyncio.sleep(0.01)
    assert call.exchange.on_close is not None
    call.exchange.on_close()
    with pytest.raises(Cancelled):
        await task
    assert fleet.cancelled == 1
