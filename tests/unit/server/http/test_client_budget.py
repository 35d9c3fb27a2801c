"""What clients may make the server keep: request bodies, and responses that nobody reads."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import Any

import pytest

from enginebay.server.http.client_budget import ClientBudget
from enginebay.server.http.connection_sweep import bound_unread_bytes
from enginebay.server.http.exchange import Exchange
from enginebay.server.http.refusal import Refusal
from tests.unit.server.http.memory_client import SETTINGS, MemoryClient, build_post

KB = 1 << 10
ROOM = replace(
    SETTINGS, max_body_bytes=200 * KB, max_buffered_bytes=500 * KB, max_client_buffered_bytes=300 * KB,
    write_buffer_bytes=10 * KB,
)  # fmt: skip


def make_client(budget: ClientBudget, reply: Any = None) -> MemoryClient:
    return MemoryClient(reply, settings=ROOM, budget=budget)


def unfinished(size: int, client: str = "a", declared: int = 200 * KB) -> bytes:
    head = f"POST /p HTTP/1.1\r\nhost: x\r\nx-client: {client}\r\ncontent-length: {declared}\r\n\r\n"
    return head.encode() + b"x" * size


def respond(exchange: Exchange) -> None:
    exchange.respond(200, b"ok")


def test_one_client_cannot_fill_the_memory_with_unfinished_bodies() -> None:
    budget = ClientBudget(ROOM)
    clients = [make_client(budget).send(unfinished(150 * KB)) for _ in range(20)]
    refused = [client for client in clients if client.statuses()]
    assert [client.statuses() for client in refused] == [[429]] * 18
    assert b"client_body_buffer_bytes" in refused[0].received and b"retry-after: 1" in refused[0].received
    assert budget.held == 300 * KB
    assert make_client(budget, respond).send(unfinished(150 * KB, "b", 150 * KB)).statuses() == [200]


def test_all_clients_together_cannot_either() -> None:
    budget = ClientBudget(ROOM)
    clients = [make_client(budget).send(unfinished(150 * KB, f"c{number}")) for number in range(10)]
    assert [client.statuses() for client in clients] == [[]] * 3 + [[503]] * 7
    assert b"body_buffer_bytes" in clients[-1].received and budget.held == 450 * KB


def test_small_bodies_always_pass() -> None:
    budget = ClientBudget(ROOM)
    for number in range(3):
        make_client(budget).send(unfinished(150 * KB, f"c{number}"))
    assert make_client(budget, respond).send(build_post(b"x" * 60 * KB)).statuses() == [200]


def test_a_body_counts_until_its_response_is_written() -> None:
    budget = ClientBudget(ROOM)
    client = make_client(budget).send(unfinished(100 * KB, declared=100 * KB))
    [exchange] = client.app.requests
    assert budget.held == 100 * KB
    exchange.respond(200, b"ok")
    assert budget.held == 0 and budget._by_client == {}
    client.send(unfinished(100 * KB))
    client.connection.connection_lost(None)
    assert budget.held == 0 and budget._by_client == {}


def test_the_body_of_a_client_that_left_counts_while_it_is_worked_on() -> None:
    """Otherwise a client could fill the memory with requests that it closes at once."""
    budget = ClientBudget(ROOM)
    client = make_client(budget).send(unfinished(100 * KB, declared=100 * KB))
    client.send(unfinished(90 * KB, declared=90 * KB))
    [exchange] = client.app.requests
    assert budget.held == 190 * KB
    client.connection.connection_lost(None)
    assert exchange.closed and budget.held == 100 * KB, "the next one was not begun"
    exchange.release_body()
    assert budget.held == 0 and budget._by_client == {}


def test_a_refused_body_counts_no_more() -> None:
    budget = ClientBudget(ROOM)
    client = make_client(budget)
    client.send(b"POST /p HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(3):
        client.send(b"%x\r\n%b\r\n" % (90 * KB, b"x" * 90 * KB))
    assert client.statuses() == [413]
    client.connection.connection_lost(None)
    assert budget.held == 0


def test_what_a_compressed_body_becomes_counts() -> None:
    budget = ClientBudget(ROOM)
    packed = gzip.compress(b"x" * 190 * KB)
    clients = [make_client(budget).send(build_post(packed, "content-encoding: gzip\r\n")) for _ in range(3)]
    assert [client.statuses() for client in clients] == [[], [429], [429]] and budget.held == 190 * KB


def test_what_a_body_refers_to_counts_with_it() -> None:
    budget = ClientBudget(ROOM)
    clients = [make_client(budget).send(unfinished(100 * KB, declared=100 * KB)) for _ in range(2)]
    first, second = (client.app.requests[0] for client in clients)
    first.hold_bytes(180 * KB)
    assert budget.held == 280 * KB
    with pytest.raises(Refusal, match="too many large requests"):
        second.hold_bytes(400 * KB)
    assert budget.held == 280 * KB, "a refused one counts as before"
    first.release_body()
    second.respond(200, b"ok")
    assert budget.held == 0 and budget._by_client == {}


def test_a_small_body_counts_once_it_refers_to_much() -> None:
    budget = ClientBudget(ROOM)
    client = make_client(budget).send(unfinished(1 * KB, declared=1 * KB))
    [exchange] = client.app.requests
    exchange.hold_bytes(2 * KB)
    assert budget.held == 0
    exchange.hold_bytes(90 * KB)
    assert budget.held == 90 * KB
    client.connection.connection_lost(None)
    assert budget.held == 90 * KB, "the application works on it"
    exchange.release_body()
    assert budget.held == 0 and budget._by_client == {}


def test_one_body_of_the_maximum_size_always_fits() -> None:
    settings = replace(ROOM, max_buffered_bytes=KB, max_client_buffered_bytes=KB)
    client = MemoryClient(respond, settings=settings).send(unfinished(200 * KB))
    assert client.statuses() == [200]


def test_the_clients_that_read_least_are_disconnected() -> None:
    connections: set[Any] = set()
    clients = []
    for size in (400, 20, 300, 100):
        client = MemoryClient(respond, read_bytes=0, settings=ROOM)
        client.send(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n")
        client.connection.write(b"x" * size * KB)
        connections.add(client.connection)
        clients.append(client)
    left = bound_unread_bytes(connections, 200 * KB)
    assert [client.transport.aborted for client in clients] == [True, False, True, False]
    assert 120 * KB <= left <= 200 * KB


def test_what_a_stream_holds_back_counts_too() -> None:
    client = MemoryClient(read_bytes=0, settings=ROOM)
    client.send(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n")
    [exchange] = client.app.requests
    exchange.start(200, "text/event-stream")
    exchange.write(b"x" * 20 * KB)
    exchange.held_bytes = 100 * KB
    assert client.connection.congested and client.connection.unread_bytes > 120 * KB
    assert bound_unread_bytes({client.connection}, 110 * KB) <= 0 and client.transport.aborted
