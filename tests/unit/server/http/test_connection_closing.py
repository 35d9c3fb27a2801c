"""How a connection closes: deadlines, limits, disconnects and shutdown."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest

from enginebay.server.http import listener
from tests.unit.server.http.memory_client import (
    GET,
    OLD,
    SETTINGS,
    MemoryClient,
    build_post,
    reply_ok,
    run_pending_callbacks,
    wait,
)

# Deadlines


async def test_a_closed_connection_keeps_its_deadline_while_it_drains() -> None:
    client = MemoryClient(read_bytes=0).send(OLD)
    client.app.requests[0].respond(200, b"x" * 1000)
    client.transport.drain()
    wait(client, 39)
    assert not client.transport.aborted
    wait(client, 41)
    assert client.transport.aborted


async def test_time_while_the_loop_was_blocked_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop blocks just before the 10 s deadline, so data that the client sends in time is read late."""
    began, closed = time.monotonic(), []
    for sweeps in ([9.8, 10.3], [9.8, 14.9], [9.8, 14.9, 15.4]):
        client = MemoryClient()
        with socket.socket() as sock:
            http_listener = listener.HttpListener(sock, replace(SETTINGS), client.app)
            http_listener.connections, http_listener._swept_at = client.connections, began + 9.3
            for at_s in sweeps:
                monkeypatch.setattr(listener, "time", SimpleNamespace(monotonic=lambda at_s=at_s: began + at_s))
                http_listener._sweep_deadlines()
                assert http_listener._sweeper is not None
                http_listener._sweeper.cancel()
        closed.append(client.transport.closed)
    assert closed == [True, False, True]


async def test_deadlines_of_each_state() -> None:
    silent = MemoryClient()
    wait(silent, 9)
    assert not silent.transport.closed
    wait(silent, 11)
    assert silent.transport.closed and silent.received == b""

    headers = MemoryClient().send(GET[:10])
    wait(headers, 11)
    assert headers.statuses() == [408] and headers.transport.ended and headers.app.refusals == [408]

    body = MemoryClient().send(build_post(b"12345")[:-1])
    wait(body, 19)
    assert not body.received
    wait(body, 21)
    assert body.statuses() == [408]

    answering = MemoryClient().send(GET)
    wait(answering, 10**6)
    assert not answering.transport.closed

    idle = MemoryClient(reply_ok).send(GET)
    wait(idle, 29)
    assert not idle.transport.closed
    wait(idle, 31)
    assert idle.transport.closed and not idle.transport.aborted

    stalled = MemoryClient(read_bytes=0).send(GET)
    stalled.app.requests[0].respond(200, b"x" * 1000)
    wait(stalled, 39)
    assert not stalled.transport.closed
    wait(stalled, 41)
    assert stalled.transport.aborted


async def test_a_refused_connection_lingers_and_ignores_input() -> None:
    client = MemoryClient().send(build_post(b"x" * 2000))
    assert client.statuses() == [413] and client.transport.ended and not client.transport.closed
    client.send(b"x" * 10_000, GET)
    assert client.app.requests == [] and client.statuses() == [413]
    wait(client, 6)
    assert client.transport.aborted


async def test_a_closed_connection_that_does_not_drain_is_aborted() -> None:
    client = MemoryClient(read_bytes=0).send(OLD)
    client.app.requests[0].respond(200, b"x")  # small: it does not count as congested
    assert client.transport.closed and not client.transport.aborted
    wait(client, 41)
    assert client.transport.aborted


# Limits


@pytest.mark.parametrize("pieces", [1, 7, 100])
async def test_headers_over_the_limit(pieces: int) -> None:
    data = GET.replace(b"host: x", b"host: x\r\nx-long: " + b"x" * 600)
    size = len(data) // pieces + 1
    client = MemoryClient(reply_ok).send(*(data[start : start + size] for start in range(0, len(data), size)))
    assert client.statuses() == [431] and client.app.requests == []


async def test_a_large_body_in_one_piece_is_not_a_large_header() -> None:
    client = MemoryClient(reply_ok).send(build_post(b"x" * 900))
    assert client.statuses() == [200]


async def test_endless_headers_after_a_request() -> None:
    client = MemoryClient().send(GET, b"GET / HTTP/1.1\r\n", *(b"x-a: " + b"x" * 100 + b"\r\n" for _ in range(20)))
    client.app.requests[0].respond(200, b"")
    assert client.statuses() == [200] and client.transport.closed


async def test_a_request_without_a_key_is_refused_before_its_body() -> None:
    large = b"POST / HTTP/1.1\r\nhost: x\r\nx-no-key: 1\r\ntransfer-encoding: chunked\r\n\r\n"
    client = MemoryClient(reply_ok).send(large)
    assert client.statuses() == [401] and client.app.requests == []
    assert MemoryClient(reply_ok).send(build_post(b"small", "x-no-key: 1\r\n")).statuses() == [
        200
    ]  # the application refuses it


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.1\r\nhost: x\r\nx-echo: 7\r\ncontent-length: 5000\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nhost: x\r\nx-echo: 7\r\nx-no-key: 1\r\ntransfer-encoding: chunked\r\n\r\n", 401),
        (build_post(b"x", "x-echo: 7\r\ncontent-encoding: br\r\n"), 415),
        (build_post(b"x", "x-echo: 7\r\ncontent-encoding: gzip\r\n"), 400),
    ],
    ids=["too large", "no key", "encoding", "not gzip"],
)
async def test_a_refusal_has_the_headers_the_application_adds(sent: bytes, status: int) -> None:
    client = MemoryClient(reply_ok).send(sent)
    assert client.statuses() == [status] and client.app.requests == []
    assert b"\r\nx-reply: 7\r\n" in client.received.partition(b"\r\n\r\n")[0]


async def test_any_number_of_upgrades_in_one_piece() -> None:
    one = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    client = MemoryClient(reply_ok).send(one * 8)
    for _ in range(20):
        await asyncio.sleep(0)
    assert client.statuses() == [200] * 8


async def test_a_body_over_the_limit() -> None:
    chunked = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    client = MemoryClient().send(chunked, *(b"64\r\n" + b"x" * 100 + b"\r\n" for _ in range(20)))
    assert client.statuses() == [413] and client.app.requests == []
    trailers = MemoryClient().send(chunked, b"1\r\nx\r\n0\r\n", *(b"x: " + b"x" * 500 + b"\r\n" for _ in range(30)))
    assert trailers.statuses() == [413]
    extensions = MemoryClient().send(chunked, *(b"1;" + b"x" * 500 + b"\r\nx\r\n" for _ in range(30)))
    assert extensions.statuses() == [413]


async def test_100_continue_is_sent_once_and_only_if_the_body_is_accepted() -> None:
    head, _, body = build_post(b"12345", "expect: 100-continue\r\n").partition(b"\r\n\r\n")
    client = MemoryClient(reply_ok).send(head + b"\r\n\r\n")
    assert client.received == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(body)
    assert client.statuses() == [100, 200]
    assert MemoryClient().send(head.replace(b": 5", b": 5000") + b"\r\n\r\n").statuses() == [413]
    assert MemoryClient().send(head.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n\r\n").received == b""


# Disconnects and shutdown


async def test_a_client_that_disconnects() -> None:
    client = MemoryClient().send(GET + GET)
    closed = []
    [exchange] = client.app.requests
    exchange.on_close = lambda: closed.append(True)
    assert client.connection.eof_received() is False
    client.connection.connection_lost(None)
    assert closed == [True] and exchange.closed and exchange.status == 499 and client.connections == set()
    exchange.start(200, "text/plain")
    exchange.write(b"x")
    exchange.end(b"x")
    exchange.respond(200, b"x")
    await run_pending_callbacks()
    assert client.received == b"" and len(client.app.requests) == 1


async def test_a_client_that_disconnects_between_two_responses() -> None:
    client = MemoryClient().send(GET + GET)
    client.app.requests[0].respond(200, b"")
    client.connection.connection_lost(None)  # the second request was about to be dispatched
    await run_pending_callbacks()
    assert len(client.app.requests) == 1


async def test_a_lost_connection_leaves_no_reference_cycle() -> None:
    """Memory is freed at once, not by the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        for data in (GET, GET + GET, build_post(b"12345")[:-1], b"GET"):
            client = MemoryClient().send(data)
            gone = weakref.ref(client.connection)
            client.connection.connection_lost(None)
            client.transport.protocol = None
            client.app.requests.clear()
            del client
            await run_pending_callbacks()
            assert gone() is None
    finally:
        gc.enable()


async def test_close_when_idle_finishes_the_response() -> None:
    idle = MemoryClient()
    idle.connection.close_when_idle()
    assert idle.transport.closed
    busy = MemoryClient().send(GET + GET)
    busy.connection.close_when_idle()
    assert not busy.transport.closed and busy.connection.busy
    busy.app.requests[0].respond(200, b"")
    await run_pending_callbacks()
    assert busy.statuses() == [200] and busy.transport.closed and len(busy.app.requests) == 1
    assert b"connection: close" in busy.received


async def test_unsent_bytes_count_as_busy() -> None:
    client = MemoryClient(lambda exchange: exchange.respond(200, b"x" * 50), read_bytes=0).send(GET)
    assert client.connection.busy
    client.transport.read_bytes = 10**6
    assert not client.connection.busy


async def test_an_upgrade_is_declined_and_the_body_read() -> None:
    data = build_post(b"12345", "connection: upgrade\r\nupgrade: h2c\r\n")
    for size in range(1, len(data) + 1):
        client = MemoryClient(reply_ok).send(*(data[start : start + size] for start in range(0, len(data), size)))
        [exchange] = client.app.requests
        assert exchange.body == b"12345" and "upgrade" not in exchange.headers
        assert client.send(GET).statuses() == [200, 200]
    assert MemoryClient(reply_ok).send(b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n" + GET).statuses() == [400]


# Host


@pytest.mark.parametrize(
    "headers", [b"", b"x-a: b\r\n", b"host: a\r\nhost: b\r\n", b"host: a\r\nHost: a\r\n", b"host: a,b\r\n"]
)
async def test_http_1_1_needs_exactly_one_host(headers: bytes) -> None:
    client = MemoryClient(reply_ok).send(b"GET / HTTP/1.1\r\n" + headers + b"\r\n" + GET)
    assert client.statuses() == [400] and client.app.requests == []
    assert b"exactly one Host header" in client.received


@pytest.mark.parametrize("headers", [b"host:\r\n", b"HOST: a\r\n", b"host: [::1]:80\r\n"])
async def test_other_hosts_are_served(headers: bytes) -> None:
    assert MemoryClient(reply_ok).send(b"GET / HTTP/1.1\r\n" + headers + b"\r\n").statuses() == [200]


async def test_http_1_0_needs_none() -> None:
    assert MemoryClient(reply_ok).send(b"GET / HTTP/1.0\r\n\r\n").statuses() == [200]
