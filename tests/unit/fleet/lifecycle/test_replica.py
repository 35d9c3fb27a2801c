"""What a place knows of requests that were sent to it and are not there yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.fleet.lifecycle import replica as places
from enginebay.fleet.lifecycle.replica import Replica

NOW = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(now=NOW)
    monkeypatch.setattr(places, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def _seated(taken_before: int) -> Replica:
    place = Replica(
        variant=SimpleNamespace(settings=SimpleNamespace(pinned=False)),
        observation_key="k",
        awake_bytes={},
        asleep_bytes=None,
    )  # type: ignore[arg-type]
    worker: Any = SimpleNamespace(facts=SimpleNamespace(memory_bytes=1))
    place.attach_worker(worker, taken_before)
    return place


@pytest.mark.parametrize("taken_before", [0, 7])
def test_requests_are_on_their_way_until_the_worker_has_counted_them(clock: Any, taken_before: int) -> None:
    """A worker that has slept goes on counting where it was."""
    place = _seated(taken_before)
    assert not place.awaiting_arrivals
    place.expect_requests(2)
    place.accepted_requests = taken_before  # as a look finds it
    assert place.awaiting_arrivals
    place.accepted_requests = taken_before + 1
    assert place.awaiting_arrivals
    place.accepted_requests = taken_before + 2
    assert not place.awaiting_arrivals


def test_nobody_is_waited_for_for_long(clock: Any) -> None:
    place = _seated(0)
    place.expect_requests(1)
    clock.now += 1.9
    assert place.awaiting_arrivals
    clock.now += 0.2
    assert not place.awaiting_arrivals


def test_only_those_it_was_raised_for_keep_the_door_open(clock: Any) -> None:
    """Else a model that is asked all the time would never leave."""
    place = _seated(0)
    clock.now += 5
    place.expect_requests(1)
    assert not place.awaiting_arrivals
