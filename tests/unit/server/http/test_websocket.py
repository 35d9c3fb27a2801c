"""WebSockets: the handshake, limits, time, and what is given back."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest

from enginebay.server.http.client_budget import ClientBudgets
from enginebay.server.http.connection_sweep import bound_unread_bytes
from enginebay.server.http.exchange import Exchange
from tests.unit.server.http.memory_client import MemoryClient, reply_ok, wait
from tests.unit.server.http.websocket_client import KB, ROOM, SocketClient
from tests.unit.server.http.websocket_frames import (
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    build_close,
    build_frame,
    build_upgrade,
    read_close,
)

# The handshake


async def test_the_handshake() -> None:
    client = SocketClient()
    head = client.received
    assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in head  # the example of RFC 6455
    assert b"sec-websocket-extensions" not in head and b"sec-websocket-protocol" not in head
    [exchange] = client.app.requests
    assert (exchange.method, exchange.path, exchange.status) == ("WEBSOCKET", "/socket", 101)
    assert client.connections == {client.socket} and client.budgets.websockets.held == 1
    client.transport.protocol.connection_lost(None)
    assert (
        client.connections == set()
        and client.budgets.websockets.held == 0
        and client.budgets.websockets._by_client == {}
    )


async def test_a_frame_right_behind_the_handshake() -> None:
    client = MemoryClient(lambda exchange: sockets.append(exchange.accept_websocket()), settings=ROOM)
    sockets: list[Any] = []
    client.send(build_upgrade() + build_frame(TEXT, b"early"))
    assert [message.body for message in sockets[0]._queue] == [b"early"] and not client.transport.reading_paused


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (build_upgrade(version="8"), 426),
        (build_upgrade(key="short"), 400),
        (build_upgrade(key="§" * 16), 400),
        (build_upgrade().replace(b"host: x\r\n", b""), 400),
        (build_upgrade(headers="host: y\r\n"), 400),
        (build_upgrade(headers="content-length: 5\r\n"), 400),
        (build_upgrade(headers=f"x: {'y' * 600}\r\n"), 431),
    ],
)
async def test_a_handshake_that_cannot_be(request_bytes: bytes, status: int) -> None:
    client = MemoryClient(reply_ok, settings=ROOM).send(request_bytes)
    assert client.statuses() == [status] and client.app.requests == []
    assert status == 431 or b"sec-websocket-version: 13\r\n" in client.received


@pytest.mark.parametrize(
    "request_bytes",
    [
        build_upgrade("/other"),
        build_upgrade().replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\ncontent-length: 0\r\n\r\n"),
        build_upgrade().replace(b"upgrade: websocket", b"upgrade: h2c"),
    ],
)
async def test_where_there_is_no_websocket_the_request_is_an_ordinary_one(request_bytes: bytes) -> None:
    client = MemoryClient(reply_ok, settings=ROOM).send(request_bytes)
    assert client.statuses() == [200] and client.app.requests[0].method != "WEBSOCKET"


async def test_the_application_may_refuse() -> None:
    client = MemoryClient(lambda exchange: exchange.respond(401, b"{}"), settings=ROOM).send(build_upgrade())
    assert client.statuses() == [401] and client.transport.closed and b"connection: close" in client.received


async def test_too_many_websockets() -> None:
    budgets = ClientBudgets(replace(ROOM, max_client_websockets=2, max_websockets=3))
    clients = []
    for number in range(5):
        client = MemoryClient(lambda exchange: exchange.accept_websocket(), settings=ROOM)
        client.connection._budgets = budgets
        clients.append(client.send(build_upgrade(headers=f"x-client: {'a' if number < 3 else number}\r\n")))
    assert [client.statuses()[0] for client in clients] == [101, 101, 429, 101, 503]
    assert b":client_websockets" in clients[2].received and b"retry-after: 1" in clients[2].received
    assert b":websockets" in clients[4].received
    clients[0].transport.protocol.connection_lost(None)
    assert budgets.websockets.held == 2


# Limits


async def test_a_message_beyond_the_limit() -> None:
    SocketClient().send(build_frame(TEXT, b"x" * 1001)).assert_closed(1009, "1000 bytes: server.limits.body_bytes")  # type: ignore[attr-defined]
    client = SocketClient()
    client.send(build_frame(TEXT, b"x" * 600, fin=False), build_frame(CONTINUATION, b"x" * 401, fin=False))
    client.assert_closed(1009, "body_bytes")


async def test_ten_gigabytes_declared() -> None:
    client = SocketClient().send(b"\x81\xff" + (10 << 30).to_bytes(8, "big") + b"mask" + b"x" * 1001)
    client.assert_closed(1009, "body_bytes")  # type: ignore[attr-defined]


async def test_endless_fragments() -> None:
    client = SocketClient().send(build_frame(TEXT, b"", fin=False))
    for _ in range(100):
        client.send(build_frame(CONTINUATION, b"", fin=False) * 700)
        while client.socket._unparsed:
            await asyncio.sleep(0)
    client.assert_closed(1008, "frames")


async def test_a_flood_of_pings_is_not_read_faster_than_it_is_answered() -> None:
    client = SocketClient(read_bytes=1000)
    client.send(build_frame(PING, b"x" * 100) * 1000)
    assert client.transport.reading_paused and len(client.sent) < 40 * KB
    client.transport.drain()
    assert len(client.sent) < 80 * KB, "one slice more"


async def test_a_flood_yields_to_other_connections() -> None:
    client = SocketClient(max_body_bytes=10**6)
    client.send(build_frame(PONG) * 100_000)
    assert client.socket._unparsed and client.transport.reading_paused
    client.transport.protocol.connection_lost(None)
    await asyncio.sleep(0.01)
    assert not client.socket._unparsed


async def test_messages_that_nobody_answers_yet_are_not_read() -> None:
    client = SocketClient()
    for number in range(12):
        client.send(build_frame(TEXT, b"%d" % number))
    assert client.messages == [b"%d" % number for number in range(8)] and client.transport.reading_paused
    received = [await client.socket.receive() for _ in range(12)]
    assert [message.body for message in received if message is not None] == [b"%d" % number for number in range(12)]
    assert not client.transport.reading_paused


async def test_large_messages_count_until_they_are_answered() -> None:
    client = SocketClient(max_body_bytes=300 * KB, max_client_buffered_bytes=500 * KB)
    client.send(build_frame(TEXT, b"x" * 200 * KB))
    while client.socket._unparsed:
        await asyncio.sleep(0)
    assert client.budgets.bodies.held == 200 * KB
    message = await client.socket.receive()
    assert message is not None and message.lease is not None
    client.send(build_frame(TEXT, b"x" * 290 * KB), build_frame(TEXT, b"x" * 290 * KB))
    while client.socket._unparsed:
        await asyncio.sleep(0)
    code, reason = read_close(client.sent)
    assert code == 1013 and "client_body_buffer_bytes" in reason
    exchange = Exchange(client.socket, "MESSAGE", "/socket", {})
    exchange.body_lease = message.lease
    exchange.release_body()
    assert client.budgets.bodies.held == 0 and client.budgets.bodies._by_client == {}


async def test_what_a_message_refers_to_counts_until_it_is_answered() -> None:
    client = SocketClient(max_body_bytes=300 * KB, max_client_buffered_bytes=500 * KB)
    exchange = Exchange(client.socket, "MESSAGE", "/socket", {})
    exchange.hold_bytes(10 * KB)
    assert client.budgets.bodies.held == 0
    exchange.hold_bytes(200 * KB)
    assert client.budgets.bodies.held == 200 * KB
    exchange.release_body()
    assert client.budgets.bodies.held == 0 and client.budgets.bodies._by_client == {}


async def test_what_is_kept_between_messages_counts() -> None:
    client = SocketClient(max_body_bytes=300 * KB, max_client_buffered_bytes=200 * KB)
    assert client.socket.keep_bytes(10) and client.budgets.bodies.held == 0
    assert client.socket.keep_bytes(190 * KB) and client.budgets.bodies.held == 190 * KB
    assert not client.socket.keep_bytes(301 * KB)
    client.transport.protocol.connection_lost(None)
    assert client.budgets.bodies.held == 0


# Time


async def test_an_unfinished_message() -> None:
    client = SocketClient().send(build_frame(TEXT, b"x", fin=False))
    wait(client, 19)
    assert client.frames == []
    wait(client, 21)
    client.assert_closed(1008, "body_timeout_s")


async def test_an_idle_websocket() -> None:
    client = SocketClient()
    wait(client, 31)
    assert client.frames == [(PING, b"")], "keeps proxies from closing it"
    client.socket._idle_since -= 101
    wait(client, 62)
    client.assert_closed(1001, "websocket_idle_s")


async def test_a_websocket_with_an_answer_in_progress_is_not_idle() -> None:
    client = SocketClient()
    exchange = Exchange(client.socket, "MESSAGE", "/socket", {})
    client.socket.begin_exchange(exchange)
    client.socket._idle_since -= 1000
    wait(client, 31)
    assert client.frames == [(PING, b"")] and client.socket.busy
    client.socket.finish_exchange(exchange)
    wait(client, 31)
    assert not client.socket.closed and not client.socket.busy, "it is idle from now on"


async def test_a_client_that_does_not_read() -> None:
    client = SocketClient(read_bytes=200)
    exchange = Exchange(client.socket, "MESSAGE", "/socket", {})
    closed: list[bool] = []
    exchange.on_close = lambda: closed.append(True)
    client.socket.begin_exchange(exchange)
    client.socket.send_texts([b"x" * 5000] * 4)
    assert exchange.congested and client.transport.reading_paused and client.socket.unread_bytes > 19_000
    wait(client, 41)
    assert client.transport.aborted
    client.transport.protocol.connection_lost(None)
    assert closed == [True] and exchange.closed


async def test_slow_readers_are_bounded_together() -> None:
    client = SocketClient(read_bytes=200)
    client.socket.send_texts([b"x" * 5000] * 4)
    assert bound_unread_bytes(client.connections, 1000) <= 0 and client.transport.aborted


async def test_a_reader_that_catches_up_goes_on() -> None:
    client = SocketClient(read_bytes=200)
    exchange = Exchange(client.socket, "MESSAGE", "/socket", {})
    drained: list[bool] = []
    exchange.on_drained = lambda: drained.append(True)
    client.socket.begin_exchange(exchange)
    client.socket.send_texts([b"x" * 5000] * 4)
    client.send(build_frame(TEXT, b"next"))
    assert client.messages == []
    client.transport.drain()
    assert drained == [True] and client.messages == [b"next"] and not client.transport.reading_paused


# Ends


async def test_a_client_that_leaves_cancels_its_answer() -> None:
    for leave in (
        lambda client: client.transport.protocol.connection_lost(None),
        lambda client: client.send(build_close(1001)),
    ):
        client = SocketClient()
        exchange = Exchange(client.socket, "MESSAGE", "/socket", {})
        closed: list[bool] = []
        exchange.on_close = lambda closed=closed: closed.append(True)  # type: ignore[misc]
        client.socket.begin_exchange(exchange)
        client.send(build_frame(TEXT, b"next"))
        leave(client)
        assert closed == [True] and exchange.closed and exchange.status == 499 and client.messages == []
        assert await client.socket.receive() is None


async def test_a_half_closed_websocket_is_closed() -> None:
    assert SocketClient().transport.protocol.eof_received() is False


async def test_a_server_that_stops() -> None:
    idle = SocketClient()
    idle.socket.close_when_idle()
    idle.assert_closed(1001, "stopping")
    client = SocketClient()
    exchange = Exchange(client.socket, "MESSAGE", "/socket", {})
    client.socket.begin_exchange(exchange)
    client.socket.close_when_idle()
    assert client.frames == [] and client.socket.busy
    client.socket.finish_exchange(exchange)
    client.assert_closed(1001, "stopping")


async def test_the_http_connection_is_gone_after_the_handshake() -> None:
    gc.collect()
    gc.disable()
    try:
        client = SocketClient()
        gone = weakref.ref(client.connection)
        del client.connection
        assert gone() is None
    finally:
        gc.enable()
