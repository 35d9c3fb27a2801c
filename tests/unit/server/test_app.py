"""What is written down of a request at its end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from enginebay.config.server import ServerConfig
from enginebay.server import app as app_module
from enginebay.server.app import App
from enginebay.server.call import Call
from enginebay.server.context import Context, Handler
from enginebay.server.http.exchange import Exchange
from enginebay.server.keys import Key, Keyring, digest_of
from enginebay.server.log_lines import RequestRecord
from enginebay.server.metrics import Metrics
from enginebay.server.offers import Catalogue
from enginebay.server.routes import Route
from enginebay.server.supervisor import LocalRates
from enginebay.server.tracing import Tracer

FEW = Key("few", digest_of("few-key"), requests_per_minute=2)


class _Wire:
    peer = "127.0.0.1:5000"

    def __init__(self) -> None:
        self.aborted = False

    def common(self) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        pass

    def finished(self, _: Exchange) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


class _Server:
    """An application with one endpoint, and what it writes down."""

    def __init__(self, handler: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
        route = Route("POST", "/", handler, "chat", counted=True)
        monkeypatch.setattr(app_module, "_find_route", lambda *_: route)
        self.records: list[RequestRecord] = []
        self.metrics = Metrics()
        log: Any = SimpleNamespace(request=self.records.append)
        nothing: Any = None
        context = Context(
            ServerConfig(), Catalogue([]), self.metrics, log, LocalRates(), nothing, nothing, max_wait_s=1.0
        )  # fmt: skip
        self.app = App(context, Keyring([FEW]), Tracer(), keyless=False)

    def send(self) -> Exchange:
        exchange = Exchange(cast("Any", _Wire()), "POST", "/", {"authorization": "Bearer few-key"})
        self.app.answer(exchange)
        return exchange

    async def ask(self) -> RequestRecord:
        before = len(self.records)
        self.send()
        async with asyncio.timeout(30):
            while len(self.records) == before:
                await asyncio.sleep(0)
        return self.records[-1]

    def errors(self) -> dict[str, float]:
        children: Any = self.metrics.snapshot()["enginebay_errors_total"]["children"]  # type: ignore[index]
        return {labels[2]: value for labels, value in children}


async def _endless(_: Context, call: Call) -> None:
    call.exchange.start(200, "text/event-stream")
    await asyncio.sleep(3600)


async def test_an_answer_that_the_servers_end_cuts_off_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    server = _Server(_endless, monkeypatch)
    exchange = server.send()
    async with asyncio.timeout(30):
        while not exchange.started:
            await asyncio.sleep(0)
    await server.app.close()
    [record] = server.records
    assert (record.status, record.error, record.message) == (200, "cancelled", "the server is stopping")
    assert server.errors() == {"cancelled": 1}
