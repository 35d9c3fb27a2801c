"""Readiness, as load balancers and operators see it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import EnginebayError, LoadFailed
from enginebay.fleet.routing.variants import ModelRoute
from enginebay.server.api import readiness
from enginebay.server.api.health_endpoints import get_readiness
from enginebay.server.sessions.model_catalog import CatalogEntry, ModelCatalog
from tests.unit.server.requests.test_retry_policy import make_request_context

FAILED = "it fails to load, see `bay ps` (load_failed)"


class _Fleet:
    """Nothing is loaded, and the named models fail to load."""

    def __init__(self, *failing: str) -> None:
        self._failing = failing

    async def list_failures(self) -> dict[str, EnginebayError]:
        return {name: LoadFailed("a path of this host") for name in self._failing}


def _make_entry(name: str, *triggers: str) -> CatalogEntry:
    variants, kinds = ((name, f"{name}@other"), ("fake", "other")) if triggers else ((name,), ("fake",))
    offering = ModelRoute(name, variants, kinds, fallback_on=triggers, load_at_start=name.startswith("start"))
    return CatalogEntry(offering, ServerLimits(), 1)


async def _get_readiness(
    models: list[str], *failing: str, draining: bool = False, fallback_on: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any]]:
    entries = [_make_entry(name, *fallback_on) for name in models]
    context: Any = SimpleNamespace(draining=draining, catalog=ModelCatalog(entries), fleet=_Fleet(*failing))
    request_context = make_request_context()
    connection: Any = request_context.exchange._connection
    connection.finish_exchange = lambda _: None
    await get_readiness(context, request_context)
    return request_context.exchange.status, json.loads(b"".join(connection.writes).partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("models", [["start1", "use1"], ["use1", "use2"], ["start1"], ["use1"]], ids="+".join)
async def test_ready_when_no_model_fails(models: list[str]) -> None:
    assert await _get_readiness(models) == (200, {"status": "ready", "models": models})


@pytest.mark.parametrize("other", ["start1", "use1"])
async def test_a_failing_model_that_loads_on_use_is_listed_and_does_not_make_the_server_unready(other: str) -> None:
    """Also when no model loads at start."""
    status, body = await _get_readiness([other, "use2"], "use2")
    assert (status, body) == (200, {"status": "ready", "models": [other], "failing": [f"use2: {FAILED}"]})


async def test_a_failing_model_that_loads_at_start_makes_the_server_unready() -> None:
    status, body = await _get_readiness(["start1", "start2", "use1", "use2"], "start2", "use2")
    assert status == 503 and body == {
        "status": "not ready", "models": ["start1", "use1"],
        "reasons": [f"start2: {FAILED}"], "failing": [f"use2: {FAILED}"],
    }  # fmt: skip


async def test_not_ready_when_every_model_fails() -> None:
    status, body = await _get_readiness(["use1", "use2"], "use1", "use2")
    assert status == 503 and body == {
        "status": "not ready", "models": [], "reasons": [f"use1: {FAILED}", f"use2: {FAILED}"]
    }  # fmt: skip


async def test_not_ready_without_models_or_while_stopping() -> None:
    assert await _get_readiness([]) == (
        503,
        {"status": "not ready", "models": [], "reasons": ["no models are configured"]},
    )
    status, body = await _get_readiness(["start1"], draining=True)
    assert status == 503 and body["reasons"] == ["the server is stopping"] and body["models"] == []


async def test_a_fallback_counts_only_for_the_triggers_in_fallback_on() -> None:
    assert (await _get_readiness(["start1"], "start1", fallback_on=("load",)))[0] == 200
    assert (await _get_readiness(["start1"], "start1", fallback_on=("queue", "unavailable")))[0] == 503
    status, body = await _get_readiness(["start1"], "start1", "start1@other", fallback_on=("load",))
    assert status == 503 and body["reasons"] == [f"start1: {FAILED}"]


async def test_one_replica_that_hangs_does_not_make_its_model_unready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def probe(session: Any) -> Any:
        return None if session.answers else readiness._PROBE_TIMED_OUT

    monkeypatch.setattr(readiness, "_probe_engine", probe)
    for answers, problem in (((False, True), None), ((False, False), readiness._PROBE_TIMED_OUT)):
        sessions = [SimpleNamespace(answers=one, last_token_at=float("-inf"), probe=None) for one in answers]
        connector: Any = SimpleNamespace(
            queue=SimpleNamespace(is_full=False), list_live_sessions=lambda found=sessions: found
        )
        assert await readiness._check_connector(connector, None) == problem
