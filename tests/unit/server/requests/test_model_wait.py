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
from tests.unit.server.requests.test_retry_policy import make_request_context


@pytest.mark.parametrize(
    ("header", "expected"),
    [("", 300.0), ("wait=0", 0.0), ("wait=10", 10.0), ("respond-async, wait=5", 5.0), ("wait=9999", 300.0),
     ("wait=-1", 300.0), ("wait=x", 300.0), ("nowait=3", 300.0)],
)  # fmt: skip
def test_the_wait_preference_is_read_and_capped(header: str, expected: float) -> None:
    assert parse_wait_preference(header, 300.0) == expected


class _Fleet:
    """Never gets a model loaded."""

    def __init__(self) -> None:
        self.acquires = self.preloads = 0
        self.cancelled = 0
        self.queued: bool | None = None

    async def acquire(
        self, name: str, timeout_s: float | None = None, failed_address: str = "", queued: bool = True
    ) -> Any:
        self.acquires += 1
        self.queued = queued
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def estimate_wait(self, name: str, *, preload: bool = False) -> WaitEstimate:
        self.preloads += preload
        return WaitEstimate(name, "loading", 12.4, 1)

    async def list_failures(self) -> dict[str, EnginebayError]:
        raise NotImplementedError

    async def run_admin_command(self, command: str, arguments: dict[str, Any]) -> Any:
        raise NotImplementedError


def _wait(request_context: Any, fleet: _Fleet, *, stream: bool, begun: bool = False) -> Any:
    connector = VariantConnector("m", "fake", ServerLimits(), 1)
    return wait_for_session(request_context, connector, fleet, 300.0, stream, ServerLimits(), ServerMetrics(), begun)


async def test_wait_0_is_refused_with_an_estimate_and_starts_the_load() -> None:
    request_context, fleet = make_request_context(), _Fleet()
    request_context.exchange.headers["prefer"] = "wait=0"
    with pytest.raises(Overloaded) as refused:
        await _wait(request_context, fleet, stream=False)
    assert refused.value.retry_after_s == 12.4 and "loading, about 12 s" in refused.value.message and not fleet.acquires
    assert fleet.preloads == 1, "or nobody would ever load it"


async def test_wait_0_loads_one_engine_of_a_chain() -> None:
    request_context, fleet = make_request_context(), _Fleet()
    request_context.exchange.headers["prefer"] = "wait=0"
    for error, preloads in ((EngineMissing("it is not there"), 1), (Overloaded("it is loading"), 1)):
        request_context.first_error = error
        with pytest.raises(Overloaded):
            await _wait(request_context, fleet, stream=False)
        assert fleet.preloads == preloads


async def test_a_response_that_has_begun_waits_whatever_the_limits_for_a_first_load() -> None:
    for begun in (True, False):
        request_context, fleet = make_request_context(), _Fleet()
        request_context.exchange.headers["prefer"] = "wait=0" if begun else "wait=5"
        task = asyncio.ensure_future(_wait(request_context, fleet, stream=False, begun=begun))
        await asyncio.sleep(0.01)
        assert fleet.acquires == 1 and fleet.queued is not begun
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_only_streams_get_progress_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_wait, "_PROGRESS_INTERVAL_S", 0.01)
    for stream in (True, False):
        request_context, fleet = make_request_context(), _Fleet()
        task = asyncio.ensure_future(_wait(request_context, fleet, stream=stream))
        async with asyncio.timeout(30):
            while stream and not request_context.wait_announced:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        written = b"".join(request_context.exchange._connection.writes)  # type: ignore[attr-defined]
        assert (b": m is loading, about 12 s" in written) is stream and request_context.wait_announced is stream
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        assert fleet.cancelled == 1


async def test_a_disconnect_cancels_the_wait() -> None:
    request_context, fleet = make_request_context(), _Fleet()
    task = asyncio.ensure_future(_wait(request_context, fleet, stream=False))
    await asyncio.sleep(0.01)
    assert request_context.exchange.on_close is not None
    request_context.exchange.on_close()
    with pytest.raises(Cancelled):
        await task
    assert fleet.cancelled == 1
