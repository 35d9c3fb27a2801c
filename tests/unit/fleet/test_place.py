"""What a place knows of requests that were sent to it and are not there yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.fleet import place as places
from enginebay.fleet.place import Place

NOW = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(now=NOW)
    monkeypatch.setattr(places, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def _seated(taken_before: int) -> Place:
    place = Place(variant=SimpleNamespace(settings=SimpleNamespace(pinned=False)), key="k", awake={}, asleep=None)  # type: ignore[arg-type]
    worker: Any = SimpleNamespace(facts=SimpleNamespace(memory_bytes=1))
    place.seat(worker, taken_before)
    return place


@pytest.mark.parametrize("taken_before", [0, 7])
def test_requests_are_on_their_way_until_the_worker_has_counted_them(clock: Any, taken_before: int) -> None:
    """A worker that has slept goes on counting where it was."""
    place = _seated(taken_before)
    assert not place.arriving
    place.hand(2)
    place.requests = taken_before  # as a look finds it
    assert place.arriving
    place.requests = taken_before + 1
    assert place.arriving
    place.requests = taken_before + 2
    assert not place.arriving


def test_nobody_is_waited_for_for_long(clock: Any) -> None:
    place = _seated(0)
    place.hand(1)
    clock.now += 1.9
    assert place.arriving
    clock.now += 0.2
    assert not place.arriving


def test_only_those_it_was_raised_for_keep_the_door_open(clock: Any) -> None:
    """Else a model that is asked all the time would never leave."""
    place = _seated(0)
    clock.now += 5
    place.hand(1)
    assert not place.arriving
