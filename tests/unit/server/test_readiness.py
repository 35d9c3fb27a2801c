"""Would a request be answered now? What a load balancer and an operator are told of it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.server import Limits
from enginebay.fleet.outlook import Outlook
from enginebay.fleet.variants import Offering
from enginebay.server.endpoints.information import ready
from enginebay.server.offers import Catalogue, Offer
from tests.unit.server.test_retrying import call_of


class _Fleet:
    """Nothing is loaded; what is named here fails."""

    def __init__(self, *failing: str) -> None:
        self._failing = failing

    async def look_ahead(self, name: str, *, wish: bool = False) -> Outlook:
        return Outlook(name, "failing" if name in self._failing else "cold", 1.0, 0)


def _offer(name: str) -> Offer:
    return Offer(Offering(name, (name,), ("fake",), at_start=name.startswith("start")), Limits(), 1)


async def _asked(models: list[str], *failing: str, draining: bool = False) -> tuple[int, dict[str, Any]]:
    context: Any = SimpleNamespace(
        draining=draining, catalogue=Catalogue(map(_offer, models)), fleet=_Fleet(*failing), max_wait_s=300.0
    )
    call = call_of()
    connection: Any = call.exchange._connection
    connection.finished = lambda _: None
    await ready(context, call)
    return call.exchange.status, json.loads(b"".join(connection.writes).partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("models", [["start1", "use1"], ["use1", "use2"], ["start1"], ["use1"]], ids="+".join)
async def test_all_is_well(models: list[str]) -> None:
    assert await _asked(models) == (200, {"status": "ready", "models": models})


@pytest.mark.parametrize("other", ["start1", "use1"])
async def test_one_that_is_loaded_on_use_and_fails_is_seen_and_leaves_the_others_in_service(other: str) -> None:
    """Also where none is loaded at the start."""
    status, told = await _asked([other, "use2"], "use2")
    assert (status, told) == (200, {"status": "ready", "models": [other], "failing": ["use2: it is failing"]})


async def test_one_that_is_loaded_at_the_start_has_to_answer() -> None:
    status, told = await _asked(["start1", "start2", "use1", "use2"], "start2", "use2")
    assert status == 503 and told == {
        "status": "not ready", "models": ["start1", "use1"],
        "reasons": ["start2: it is failing"], "failing": ["use2: it is failing"],
    }  # fmt: skip


async def test_when_nothing_answers_the_server_is_not_ready() -> None:
    status, told = await _asked(["use1", "use2"], "use1", "use2")
    assert status == 503 and told == {
        "status": "not ready", "models": [], "reasons": ["use1: it is failing", "use2: it is failing"]
    }  # fmt: skip


async def test_a_server_without_models_or_about_to_stop_is_not_ready() -> None:
    assert await _asked([]) == (503, {"status": "not ready", "models": [], "reasons": ["there is no model"]})
    status, told = await _asked(["start1"], draining=True)
    assert status == 503 and told["reasons"] == ["the server is stopping"] and told["models"] == []
