"""One connection: framing, pipelining, and clients that do not read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.server.http.memory_client import (
    GET,
    OLD,
    MemoryClient,
    build_post,
    reply_ok,
    run_pending_callbacks,
    wait,
)


async def test_a_request_in_any_pieces() -> None:
    data = build_post(b'{"a": 1}', "X-One: 1\r\nx-one: 2\r\n")
    for size in range(1, len(data) + 1):
        client = MemoryClient(reply_ok).send(*(data[start : start + size] for start in range(0, len(data), size)))
        [exchange] = client.app.requests
        assert (exchange.method, exchange.path, exchange.body) == ("POST", "/p", b'{"a": 1}')
        assert exchange.headers["x-one"] == "1,2"
        assert client.received.endswith(b"content-length: 2\r\n\r\n/p") and not client.transport.closed


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=60), max_size=12))
async def test_nothing_that_is_sent_raises(pieces: list[bytes]) -> None:
    client = MemoryClient(reply_ok).send(GET, *pieces)
    await run_pending_callbacks()
    client.connection.expire()
    assert client.statuses()[0] == 200


async def test_the_query() -> None:
    [exchange] = MemoryClient().send(GET).app.requests
    assert exchange.path == "/a" and exchange.query == {"b": "c"} and exchange.peer == "192.0.2.1:1234"


# Framing


async def test_a_stream_in_chunks() -> None:
    client = MemoryClient().send(GET)
    [exchange] = client.app.requests
    exchange.start(200, "text/plain", {"x-a": "b"})
    for piece in (b"one", b"", b"two"):
        exchange.write(piece)
    exchange.end(b"three")
    head, _, body = client.received.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head and b"x-a: b" in head and b"connection: close" not in head
    assert body == b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"
    assert not client.transport.closed


async def test_a_stream_for_http_1_0_ends_with_the_connection() -> None:
    client = MemoryClient().send(OLD)
    [exchange] = client.app.requests
    exchange.start(200, "text/plain")
    exchange.write(b"one")
    exchange.end(b"two")
    head, _, body = client.received.partition(b"\r\n\r\n")
    assert b"chunked" not in head and b"connection: close" in head and body == b"onetwo"
    assert client.transport.closed


async def test_head_has_no_body_and_204_no_length() -> None:
    client = MemoryClient(reply_ok).send(GET.replace(b"GET", b"HEAD"))
    assert client.received.endswith(b"content-length: 2\r\n\r\n")
    client = MemoryClient(lambda exchange: exchange.respond(204, b"")).send(GET)
    assert (
        b"content-length" not in client.received
        and b"content-type" not in client.received
        and client.received.endswith(b"\r\n\r\n")
    )


async def test_only_one_response_is_sent() -> None:
    client = MemoryClient().send(GET)
    [exchange] = client.app.requests
    exchange.respond(200, b"a")
    before = client.received
    exchange.respond(500, b"b")
    exchange.start(200, "text/plain")
    assert client.received == before and exchange.status == 200


async def test_header_values_cannot_end_the_header() -> None:
    """Values are our own, but non-latin-1 text must not raise."""
    client = MemoryClient().send(GET)
    client.app.requests[0].respond(200, b"", headers=[("x-a", "€")])
    assert b"x-a: ?\r\n" in client.received


# Several requests on one connection


async def test_pipelined_requests_are_handled_in_order_one_at_a_time() -> None:
    client = MemoryClient().send(GET.replace(b"/a", b"/1") + GET.replace(b"/a", b"/2"), GET.replace(b"/a", b"/3"))
    assert [exchange.path for exchange in client.app.requests] == ["/1"]
    for number in (1, 2, 3):
        client.app.requests[-1].respond(200, b"%d" % number)
        await run_pending_callbacks()
    assert [exchange.path for exchange in client.app.requests] == ["/1", "/2", "/3"]
    assert [part[-1:] for part in client.received.split(b"HTTP/1.1 200")[1:]] == [b"1", b"2", b"3"]


async def test_reading_pauses_when_too_many_requests_are_pipelined() -> None:
    client = MemoryClient()
    for _ in range(9):
        assert not client.transport.reading_paused
        client.send(GET)
    assert client.transport.reading_paused
    client.app.requests[0].respond(200, b"")
    await run_pending_callbacks()
    assert not client.transport.reading_paused
    client.send(GET * 20)
    assert client.transport.reading_paused
    client.app.requests[-1].respond(200, b"")
    await run_pending_callbacks()
    assert client.transport.reading_paused  # the pipeline is still full


async def test_each_request_is_answered_in_its_own_version() -> None:
    client = MemoryClient().send(GET + OLD)
    first = client.app.requests[0]
    first.start(200, "text/plain")
    first.end(b"x")
    assert b"chunked" in client.received
    await run_pending_callbacks()
    second = client.app.requests[1]
    second.start(200, "text/plain")
    second.end(b"y")
    assert client.received.count(b"chunked") == 1 and client.received.endswith(b"\r\n\r\ny") and client.transport.closed


async def test_connection_close_is_obeyed() -> None:
    client = MemoryClient(reply_ok).send(GET.replace(b"host: x", b"host: x\r\nconnection: close") + GET)
    await run_pending_callbacks()
    assert len(client.app.requests) == 1 and b"connection: close" in client.received and client.transport.closed


async def test_requests_before_a_bad_one_are_handled() -> None:
    client = MemoryClient().send(GET + GET + b"\x00\r\n\r\n")
    for _ in range(2):
        client.app.requests[-1].respond(200, b"")
        await run_pending_callbacks()
    assert client.statuses() == [200, 200] and client.transport.closed and client.app.refusals == []


# Clients that do not read


async def test_a_congested_client_gets_no_further_response() -> None:
    client = MemoryClient(read_bytes=0).send(GET)
    drained = []
    [exchange] = client.app.requests
    exchange.on_drained = lambda: drained.append(True)
    exchange.start(200, "text/plain")
    exchange.write(b"x" * 1000)
    assert exchange.congested and exchange.unsent_bytes > 1000 and client.connection.deadline is not None
    client.send(GET)
    exchange.end()
    await run_pending_callbacks()
    assert len(client.app.requests) == 1  # another response would only add to the backlog
    client.transport.drain()
    await run_pending_callbacks()
    assert len(client.app.requests) == 2 and not drained
    assert client.connection.deadline is None


async def test_on_drained_is_called_when_the_client_catches_up() -> None:
    client = MemoryClient(read_bytes=0).send(GET)
    drained = []
    [exchange] = client.app.requests
    exchange.on_drained = lambda: drained.append(True)
    exchange.start(200, "text/plain")
    exchange.write(b"x" * 1000)
    client.transport.drain()
    assert drained == [True] and not exchange.congested and client.connection.deadline is None


async def test_a_request_waits_until_the_previous_response_is_read() -> None:
    client = MemoryClient(lambda exchange: exchange.respond(200, b"x" * 1000), read_bytes=0).send(GET)
    client.send(GET)
    await run_pending_callbacks()
    assert len(client.app.requests) == 1
    client.transport.drain()
    await run_pending_callbacks()
    assert len(client.app.requests) == 2


async def test_a_slow_reader_is_not_aborted_while_it_makes_progress() -> None:
    """A long response over a slow link takes longer than the stall timeout but never stalls."""
    for data in (GET, OLD):
        client = MemoryClient(read_bytes=0).send(data)
        client.app.requests[0].respond(200, b"x" * 100_000)
        for _ in range(10):
            client.transport.read_bytes += 5000
            wait(client, 41)
            assert not client.transport.aborted
        client.transport.read_bytes += 10  # too little to count as progress
        wait(client, 41)
        assert client.transport.aborted
