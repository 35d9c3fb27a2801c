"""Background responses: how they end, for their clients, in the store, and for the budgets."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.sections.server_section import ServerLimits, StateLimits
from enginebay.contract import Sampling
from enginebay.errors import Cancelled, EngineFailed
from enginebay.server.api.openai import responses
from enginebay.server.api.openai.encoders.responses_encoder import ResponseEncoder
from enginebay.server.api.openai.responses_api import background
from enginebay.server.api.openai.responses_api.background import BackgroundRun, BackgroundRuns, move_to_background
from enginebay.server.api.openai.responses_api.turn import begin_turn
from enginebay.server.api.openai.schemas import ResponsesBody
from enginebay.server.http.client_budget import BudgetLease
from enginebay.server.http.exchange import Exchange
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.state.state_client import StateClient
from enginebay.server.state.state_store import StateStore

DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":%d}\n\n'


class Wire:
    """The client's connection."""

    peer, congested = "local", False

    def __init__(self) -> None:
        self.sent = b""
        self.finished: list[Exchange] = []
        self.released: list[BudgetLease | None] = []

    def common_headers(self) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def finish_exchange(self, exchange: Exchange) -> None:
        self.finished.append(exchange)
        exchange.release_body()

    def release_body(self, exchange: Exchange) -> None:
        self.released.append(exchange.body_lease)


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[StateClient]:
    client = StateClient(tmp_path / "state", StateLimits(4 << 20))
    yield client
    await asyncio.to_thread(client.close)


@pytest.fixture
async def context(state: StateClient) -> AsyncIterator[Any]:
    runs = BackgroundRuns(state)
    yield SimpleNamespace(state=state, background=runs, config=SimpleNamespace(limits=ServerLimits()))
    runs.close()


async def start_run(context: Any, wire: Wire, streams: bool) -> tuple[BackgroundRun, RequestContext]:
    client: Any = Exchange(wire, "POST", "/v1/responses", {})  # type: ignore[arg-type]
    client.body_lease = BudgetLease("local")
    request_context = RequestContext(client, "responses", "req_1")
    turn = await begin_turn(context, request_context, "hi", stores=True)
    fields = responses.build_echoed_fields(ResponsesBody(model="m", input="x"), Sampling())
    queued = ResponseEncoder(turn.id, 1, "m", {**fields, "store": True}).encode_in_progress()
    return await move_to_background(context, request_context, turn, queued, streams), request_context


async def test_a_cancelled_stream_ends_for_its_client_and_in_the_store(context: Any, state: StateClient) -> None:
    wire = Wire()
    run, _ = await start_run(context, wire, streams=True)
    run.begin()
    run.exchange.start(200, "text/event-stream")
    run.exchange.write(DELTA % 2 + DELTA % 3)
    context.background.cancel(run.turn.id)
    run.fail(Cancelled("the client closed the connection"))
    assert wire.sent.endswith(b"0\r\n\r\n") and len(wire.finished) == 1
    last = json.loads(wire.sent.rpartition(b"data: ")[2].partition(b"\n")[0])
    assert last["type"] == "response.failed" and last["sequence_number"] == 4
    assert last["response"]["status"] == "cancelled" and "cancelled" in last["response"]["error"]["message"]
    found = await state.call(StateStore.read_events, run.turn.owner, run.turn.id, 0)
    assert found is not None
    events = b"".join(body for _, body in found[0])
    assert events.count(b"event: ") == 3 and b"event: response.failed" in events
    assert run.exchange._timer is None, "nothing more is stored"


async def test_a_stream_that_failed_ends_once(context: Any) -> None:
    wire = Wire()
    run, _ = await start_run(context, wire, streams=True)
    run.exchange.start(200, "text/event-stream")
    run.exchange.write(DELTA % 2)
    run.exchange.end(b"event: response.failed\n\n")
    run.exchange.cancel()
    run.fail(Cancelled("too late"))
    assert wire.sent.count(b"event: response.failed") == 1 and len(wire.finished) == 1


@pytest.mark.parametrize("ending", ["finish", "fail", "cancel"])
async def test_the_body_counts_until_the_run_ends(context: Any, ending: str) -> None:
    wire = Wire()
    run, request_context = await start_run(context, wire, streams=False)
    lease = run.exchange.body_lease
    assert len(wire.finished) == 1 and wire.released == [] and lease is not None, "the client has its answer"
    wire.finished[0].release_body()  # as the application does at the end of every request
    assert wire.released == []
    if ending == "finish":
        run.response.status = "completed"
        await run.finish(run.response)
    elif ending == "fail":
        run.fail(EngineFailed("x"))
    else:
        run.exchange.cancel()
        run.fail(Cancelled("x"))
    assert wire.released == [lease] and request_context.exchange is run.exchange


async def test_an_end_that_cannot_be_stored_is_stored_later(
    context: Any, state: StateClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_WATCH_INTERVAL_S", 0.01)
    run, _ = await start_run(context, Wire(), streams=False)
    finish, failures = StateStore.finish_response, [sqlite3.OperationalError("disk") for _ in range(4)]

    def finish_response(*args: Any, **kwargs: Any) -> bool:
        if failures:
            raise failures.pop()
        return finish(*args, **kwargs)

    monkeypatch.setattr(StateStore, "finish_response", finish_response)
    run.response.status = "completed"
    await run.finish(run.response)
    async with asyncio.timeout(30):
        while True:
            found = await state.call(StateStore.get_response, run.turn.owner, run.turn.id)
            assert found is not None
            if found.status == "failed":
                break
            await asyncio.sleep(0.01)
    assert not failures and found.runner == "" and b"could not be stored" in found.body
    assert context.background._unstored == {}


async def test_another_attempt_has_no_headers_of_the_one_before(context: Any) -> None:
    wire = Wire()
    client: Any = Exchange(wire, "POST", "/v1/responses", {})  # type: ignore[arg-type]
    request_context = RequestContext(client, "responses", "req_1")
    mark = client.mark_headers()
    client.add_header("x-enginebay-engine", "one")
    turn = await begin_turn(context, request_context, "hi", stores=True)
    fields = responses.build_echoed_fields(ResponsesBody(model="m", input="x"), Sampling())
    queued = ResponseEncoder(turn.id, 1, "m", {**fields, "store": True}).encode_in_progress()
    run = await move_to_background(context, request_context, turn, queued, True)
    request_context.exchange.add_header("x-enginebay-translated", "one")
    request_context.reset_for_retry(mark)
    request_context.exchange.add_header("x-enginebay-engine", "two")
    run.exchange.start(200, "text/event-stream")
    assert wire.sent.count(b"x-enginebay") == 1 and b"x-enginebay-engine: two" in wire.sent
    assert b"x-request-id: req_1" in wire.sent
    run.exchange.end()
    run.exchange.settle()


async def test_another_attempt_knows_the_size_of_its_history(context: Any) -> None:
    _, request_context = await start_run(context, Wire(), streams=False)
    assert request_context.background is not None
    request_context.background.turn.history_bytes = 1000
    request_context.reset_for_retry(0)
    turn = await responses._begin_turn(context, request_context, ResponsesBody(model="m", input="x"))
    assert turn is request_context.background.turn and request_context.history_bytes == 1000
