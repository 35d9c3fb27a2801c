"""A server process and the replicas of one variant: which get requests, and how many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import Draining
from enginebay.server.requests.replica_choice import choose_replica, find_session_header
from enginebay.server.sessions import model_catalog
from enginebay.server.sessions.model_catalog import VariantConnector
from enginebay.server.telemetry.server_metrics import ServerMetrics
from tests.unit.server.requests.test_retry_policy import make_request_context


class Client:
    """A connection to a worker that never answers."""

    def __init__(self, handle: Any) -> None:
        self.handle, self.facts = handle, handle.facts
        self.spec = SimpleNamespace(renders=True, request={})
        self.prompt_encoder = SimpleNamespace(tokenizer=None)
        self.loras = handle.loras
        self.client = SimpleNamespace(broken=False, disconnected=False, idle=True, on_load=None)

    @classmethod
    async def connect(cls, handle: Any) -> Client:
        return cls(handle)

    async def close(self) -> None:
        self.client.broken = True


def make_handle(number: int, batch: int = 4, length: int = 512, address: str = "", **fields: Any) -> Any:
    facts = SimpleNamespace(kind="fake", version="1", context_length=length, max_batch=batch, reservable_tokens=None)
    name = "toy" if number == 1 else f"toy#{number}"
    known: dict[str, Any] = {
        "replica": name,
        "loras": (),
        "sampling": {},
        "tool_format": "auto",
        "reasoning_format": "auto",
        "allow_special_tokens": False,
    }
    return SimpleNamespace(
        model="toy", source=Path("/m"), task="generate", facts=facts, address=address or f"unix:/{number}",
        **{**known, **fields},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _no_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(model_catalog, "ModelClient", Client)
    yield


METRICS, LIMITS = ServerMetrics(), ServerLimits()


async def make_connector(*handles: Any, processes: int = 1) -> VariantConnector:
    connector = VariantConnector("toy", "fake", ServerLimits(), processes)
    await connector.set_replicas(handles, LIMITS, METRICS)
    return connector


def route(connector: VariantConnector, **headers: str) -> Any:
    """Return the session that a request gets, and how it leaves."""
    request_context = make_request_context()
    request_context.exchange.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    live = connector.live_session
    assert live is not None
    return choose_replica(request_context, live, lambda: None)


async def test_requests_go_to_all_replicas_and_count_until_they_leave() -> None:
    connector = await make_connector(make_handle(1), make_handle(2))
    taken = [route(connector) for _ in range(6)]
    assert sorted(session.replica for session, _ in taken) == ["toy"] * 3 + ["toy#2"] * 3
    for _, leave in taken:
        leave()
    assert [session.in_flight for session, _ in taken] == [0] * 6
    assert taken[0][0].pool.router.loads.total == 0


async def test_a_replica_that_drains_or_breaks_gets_nothing() -> None:
    connector = await make_connector(make_handle(1), make_handle(2), make_handle(3))
    connector._sessions["unix:/1"].draining = True
    connector._sessions["unix:/2"].client.client.broken = True
    assert {route(connector)[0].replica for _ in range(6)} == {"toy#3"}
    assert connector.note_loads({"unix:/1": 0, "unix:/2": 0, "unix:/3": 0}) is False
    assert {route(connector)[0].replica for _ in range(6)} == {"toy"}, "the drain was cancelled"
    for session in connector._sessions.values():
        session.draining = True
    assert connector.live_session is None


async def test_a_request_that_finds_no_replica_is_prepared_anew() -> None:
    connector = await make_connector(make_handle(1))
    session = connector.live_session
    assert session is not None
    await connector.set_replicas([make_handle(1, length=1024, address="unix:/new")], LIMITS, METRICS)
    with pytest.raises(Draining):
        choose_replica(make_request_context(), session, lambda: None)
    assert route(connector)[0].address == "unix:/new"


async def test_requests_stay_with_replicas_that_serve_what_they_were_prepared_for() -> None:
    """In the middle of an update, the least loaded of both kinds gets the next."""
    connector = await make_connector(make_handle(1), make_handle(2), make_handle(3, length=1024))
    taken = [route(connector)[0] for _ in range(9)]
    assert sorted(session.replica for session in taken) == ["toy"] * 3 + ["toy#2"] * 3 + ["toy#3"] * 3
    old = next(session for session in taken if session.replica == "toy")
    for _ in range(4):
        assert choose_replica(make_request_context(), old, lambda: None)[0].replica != "toy#3"


async def test_the_queue_admits_what_all_replicas_run() -> None:
    connector = await make_connector(make_handle(1), make_handle(2, batch=8))
    assert connector.queue._max_running == 12
    await connector.set_replicas([make_handle(2, batch=8)], LIMITS, METRICS)
    assert connector.queue._max_running == 8 and list(connector._sessions) == ["unix:/2"]


async def test_a_reserved_replica_is_left_to_its_suspect() -> None:
    connector = await make_connector(make_handle(1), make_handle(2))
    assert connector.reserve("unix:/1") and connector.is_reserved("unix:/1")
    assert {route(connector)[0].replica for _ in range(4)} == {"toy#2"}
    suspect = connector._sessions["unix:/1"]
    trial: Any = SimpleNamespace(alone=True)
    assert choose_replica(make_request_context(), suspect, lambda: None, trial=trial)[0] is suspect
    assert not connector.reserve("unix:/2") or connector.reserve("unix:/1"), "one stays for the others"
    connector.end_reservation()
    assert {route(connector)[0].replica for _ in range(8)} == {"toy", "toy#2"}


async def test_the_slots_of_a_reserved_replica_are_not_admitted() -> None:
    connector = await make_connector(make_handle(1, batch=4), make_handle(2, batch=8))
    left = [leave for session, leave in (route(connector) for _ in range(6)) if session.address == "unix:/1"]
    assert len(left) == 3 and connector.queue._max_running == 12
    assert connector.reserve("unix:/1")
    assert connector.queue._max_running == 8 + 3, "those that run there hold theirs"
    for leave in left:
        leave()
    await connector.wait_idle("unix:/1")
    assert connector.queue._max_running == 8 + 1, "the suspect"
    connector.end_reservation()
    assert connector.queue._max_running == 12


async def test_the_only_replica_is_not_reserved() -> None:
    connector = await make_connector(make_handle(1))
    assert not connector.reserve("unix:/1") and not connector.is_reserved("unix:/1")


async def test_other_processes_count() -> None:
    connector = await make_connector(make_handle(1, batch=0), make_handle(2, batch=0), processes=2)
    assert connector.note_loads({"unix:/1": 6, "unix:/2": 0}) is False
    assert {route(connector)[0].replica for _ in range(5)} == {"toy#2"}
    connector._sessions["unix:/1"].client.client.on_load(0)  # type: ignore[misc]
    assert route(connector)[0].replica == "toy"
    assert connector.note_loads({"unix:/1": 1}) is True, "another set of replicas"


async def test_a_late_count_does_not_replace_a_fresh_one() -> None:
    connector = await make_connector(make_handle(1, batch=0), make_handle(2, batch=0), processes=2)
    session, leave = route(connector)
    loads, address = session.pool.router.loads, session.address
    session.client.client.on_load(5)  # the replica itself
    connector.note_loads({"unix:/1": 1, "unix:/2": 1})
    assert loads[address] == 5
    leave()
    connector.note_loads({"unix:/1": 1, "unix:/2": 1})  # may have been counted before
    assert loads[address] == 4
    connector.note_loads({"unix:/1": 2, "unix:/2": 2})
    assert loads[address] == 2


async def test_a_model_without_replicas_is_not_routed() -> None:
    connector = VariantConnector("toy", "fake", ServerLimits(), 1)
    session = await connector.connect(make_handle(1, replica=""), LIMITS, METRICS)
    request_context, leave = make_request_context(), lambda: None
    assert choose_replica(request_context, session, leave) == (session, leave)
    again = await connector.connect(make_handle(1, replica="", address="unix:/next"), LIMITS, METRICS)
    assert list(connector._sessions) == ["unix:/next"] and connector.live_session is again


def test_the_first_session_header_counts() -> None:
    assert find_session_header({"session_id": "b", "x-session-id": "a"}) == "a"
    assert find_session_header({"x-claude-code-session-id": "c"}) == "c"
    assert find_session_header({"user": "d", "x-session-id": ""}) == ""
