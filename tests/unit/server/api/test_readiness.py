"""Would a request be answered now? What a load balancer and an operator are told of it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import EnginebayError, LoadFailed
from enginebay.fleet.routing.variants import ModelRoute
from enginebay.server.api.openai.model_endpoints import get_readiness
from enginebay.server.sessions.model_catalog import CatalogEntry, ModelCatalog
from tests.unit.server.requests.test_retry_policy import call_of

FAILED = "it cannot be loaded now, `bay ps` says why (load_failed)"


class _Fleet:
    """Nothing is loaded; what is named here fails."""

    def __init__(self, *failing: str) -> None:
        self._failing = failing

    async def troubles(self) -> dict[str, EnginebayError]:
        return {name: LoadFailed("a path of this host") for name in self._failing}


def _offer(name: str, *triggers: str) -> CatalogEntry:
    variants, kinds = ((name, f"{name}@other"), ("fake", "other")) if triggers else ((name,), ("fake",))
    offering = ModelRoute(name, variants, kinds, fallback_on=triggers, load_at_start=name.startswith("start"))
    return CatalogEntry(offering, ServerLimits(), 1)


async def _asked(
    models: list[str], *failing: str, draining: bool = False, fallback_on: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any]]:
    offers = [_offer(name, *fallback_on) for name in models]
    context: Any = SimpleNamespace(draining=draining, catalogue=ModelCatalog(offers), fleet=_Fleet(*failing))
    call = call_of()
    connection: Any = call.exchange._connection
    connection.finished = lambda _: None
    await get_readiness(context, call)
    return call.exchange.status, json.loads(b"".join(connection.writes).partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("models", [["start1", "use1"], ["use1", "use2"], ["start1"], ["use1"]], ids="+".join)
async def test_all_is_well(models: list[str]) -> None:
    assert await _asked(models) == (200, {"status": "ready", "models": models})


@pytest.mark.parametrize("other", ["start1", "use1"])
async def test_one_that_is_loaded_on_use_and_fails_is_seen_and_leaves_the_others_in_service(other: str) -> None:
    """Also where none is loaded at the start."""
    status, told = await _asked([other, "use2"], "use2")
    assert (status, told) == (200, {"status": "ready", "models": [other], "failing": [f"use2: {FAILED}"]})


async def test_one_that_is_loaded_at_the_start_has_to_answer() -> None:
    status, told = await _asked(["start1", "start2", "use1", "use2"], "start2", "use2")
    assert status == 503 and told == {
        "status": "not ready", "models": ["start1", "use1"],
        "reasons": [f"start2: {FAILED}"], "failing": [f"use2: {FAILED}"],
    }  # fmt: skip


async def test_when_nothing_answers_the_server_is_not_ready() -> None:
    status, told = await _asked(["use1", "use2"], "use1", "use2")
    assert status == 503 and told == {
        "status": "not ready", "models": [], "reasons": [f"use1: {FAILED}", f"use2: {FAILED}"]
    }  # fmt: skip


async def test_a_server_without_models_or_about_to_stop_is_not_ready() -> None:
    assert await _asked([]) == (503, {"status": "not ready", "models": [], "reasons": ["there is no model"]})
    status, told = await _asked(["start1"], draining=True)
    assert status == 503 and told["reasons"] == ["the server is stopping"] and told["models"] == []


async def test_another_engine_answers_only_for_what_fallback_on_names() -> None:
    assert (await _asked(["start1"], "start1", fallback_on=("load",)))[0] == 200
    assert (await _asked(["start1"], "start1", fallback_on=("queue", "unavailable")))[0] == 503
    status, told = await _asked(["start1"], "start1", "start1@other", fallback_on=("load",))
    assert status == 503 and told["reasons"] == [f"start1: {FAILED}"]
