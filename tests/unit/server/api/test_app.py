"""What the server records when a request ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from enginebay.config.sections.server_section import ServerConfig
from enginebay.server.api import app as app_module
from enginebay.server.api.app import App
from enginebay.server.api.routes import find_route
from enginebay.server.auth.api_keys import ApiKey, Keyring, hash_key
from enginebay.server.http.exchange import Exchange
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import Route, RouteHandler, ServerContext
from enginebay.server.sessions.model_catalog import ModelCatalog
from enginebay.server.supervisor.supervisor import LocalRateLimits
from enginebay.server.telemetry.log_format import RequestRecord
from enginebay.server.telemetry.server_metrics import ServerMetrics
from enginebay.server.telemetry.tracing import Tracer

FEW = ApiKey("few", hash_key("few-key"), requests_per_minute=2)


class _Wire:
    peer = "127.0.0.1:5000"

    def __init__(self) -> None:
        self.aborted = False
        self.released: list[Exchange] = []

    def release_body(self, exchange: Exchange) -> None:
        self.released.append(exchange)

    def common_headers(self) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        pass

    def finish_exchange(self, _: Exchange) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


class _Server:
    """An app with one endpoint, and the records it logs."""

    def __init__(self, handler: RouteHandler, monkeypatch: pytest.MonkeyPatch, route: Route | None = None) -> None:
        route = route or Route("POST", "/", handler, "chat", rate_limited=True)
        monkeypatch.setattr(app_module, "_find_route", lambda *_: route)
        self.records: list[RequestRecord] = []
        self.metrics = ServerMetrics()
        log: Any = SimpleNamespace(log_request=self.records.append)
        nothing: Any = None
        context = ServerContext(
            ServerConfig(), ModelCatalog([]), self.metrics, log, LocalRateLimits(), nothing, nothing, max_wait_s=1.0,
            routes=(route,),
        )  # fmt: skip
        self.app = App(context, Keyring([FEW]), Tracer(), keyless=False)

    def send(self, target: str = "/") -> Exchange:
        exchange = Exchange(cast("Any", _Wire()), "POST", target, {"authorization": "Bearer few-key"})
        self.app.handle(exchange)
        return exchange

    async def ask(self, target: str = "/") -> RequestRecord:
        before = len(self.records)
        self.send(target)
        async with asyncio.timeout(30):
            while len(self.records) == before:
                await asyncio.sleep(0)
        return self.records[-1]

    def errors(self) -> dict[str, float]:
        children: Any = self.metrics.snapshot()["enginebay_errors_total"]["children"]  # type: ignore[index]
        return {labels[2]: value for labels, value in children}


async def _stream_forever(_: ServerContext, request_context: RequestContext) -> None:
    request_context.exchange.start(200, "text/event-stream")
    await asyncio.sleep(3600)


async def test_a_response_cut_off_by_shutdown_is_recorded_as_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    server = _Server(_stream_forever, monkeypatch)
    exchange = server.send()
    async with asyncio.timeout(30):
        while not exchange.started:
            await asyncio.sleep(0)
    await server.app.close()
    [record] = server.records
    assert (record.status, record.error, record.message) == (200, "cancelled", "the server is stopping")
    assert server.errors() == {"cancelled": 1}


async def test_a_body_is_held_until_the_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a client that has left."""
    done = asyncio.Event()

    async def work(_: ServerContext, request_context: RequestContext) -> None:
        await done.wait()

    server = _Server(work, monkeypatch)
    exchange = server.send()
    exchange.body_lease = cast("Any", object())
    exchange.closed = True
    await asyncio.sleep(0)
    released = cast("Any", exchange)._connection.released
    assert not released
    done.set()
    async with asyncio.timeout(30):
        while not server.records:
            await asyncio.sleep(0)
    assert released == [exchange]


async def test_a_stream_of_stored_events_is_rate_limited_and_its_refusal_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def respond(_: ServerContext, request_context: RequestContext) -> None:
        request_context.exchange.respond(200, b"{}")

    route = find_route("GET", "/v1/responses/resp_1")._replace(handler=respond)
    server = _Server(respond, monkeypatch, route)
    statuses = [(await server.ask(f"/v1/responses/resp_1?stream={value}")).status for value in ("false", *["true"] * 3)]
    assert statuses == [200, 200, 200, 429]
    assert (server.records[-1].error, server.records[-1].key) == ("rate_limited", "few")
    limited: Any = server.metrics.snapshot()["enginebay_rate_limited_total"]["children"]  # type: ignore[index]
    assert [value for _, value in limited] == [1] and server.errors() == {"rate_limited": 1}
    assert (await server.ask("/v1/responses/resp_1")).status == 200, "to look at the response stays free"
