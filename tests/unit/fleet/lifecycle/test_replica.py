"""A replica counts the requests that were sent to it and have not arrived yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.fleet.lifecycle import replica as replica_module
from enginebay.fleet.lifecycle.replica import Replica

NOW = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now=NOW)
    monkeypatch.setattr(replica_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def _awake_replica(accepted_before: int) -> Replica:
    replica = Replica(
        variant=SimpleNamespace(settings=SimpleNamespace(pinned=False), max_replicas=1),
        observation_key="k",
        awake_bytes={},
        asleep_bytes=None,
    )  # type: ignore[arg-type]
    worker: Any = SimpleNamespace(facts=SimpleNamespace(memory_bytes=1))
    replica.attach_worker(worker, accepted_before)
    return replica


@pytest.mark.parametrize("accepted_before", [0, 7])
def test_requests_are_expected_until_the_worker_has_counted_them(clock: Any, accepted_before: int) -> None:
    """A worker that wakes continues its count."""
    replica = _awake_replica(accepted_before)
    assert not replica.awaiting_arrivals
    replica.expect_requests(2)
    replica.accepted_requests = accepted_before  # as a poll reports it
    assert replica.awaiting_arrivals
    replica.accepted_requests = accepted_before + 1
    assert replica.awaiting_arrivals
    replica.accepted_requests = accepted_before + 2
    assert not replica.awaiting_arrivals


def test_arrivals_are_awaited_for_a_limited_time(clock: Any) -> None:
    replica = _awake_replica(0)
    replica.expect_requests(1)
    clock.now += 1.9
    assert replica.awaiting_arrivals
    clock.now += 0.2
    assert not replica.awaiting_arrivals


def test_only_requests_it_loaded_for_delay_a_drain(clock: Any) -> None:
    """Otherwise a busy model would never be evicted."""
    replica = _awake_replica(0)
    clock.now += 5
    replica.expect_requests(1)
    assert not replica.awaiting_arrivals
