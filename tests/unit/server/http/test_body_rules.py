"""What routes take as their body: each has its own limit, which the refusal names."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest

from enginebay.server.http.http_settings import BodyRule
from tests.unit.server.http.memory_client import SETTINGS, MemoryClient, build_post, reply_ok

RULES = {"/p": BodyRule(5000, "file_bytes"), "/small": BodyRule(10, "note_bytes")}


def make_client() -> MemoryClient:
    return MemoryClient(reply_ok, rules=RULES)


def test_a_route_may_take_more() -> None:
    assert make_client().send(build_post(b"x" * 5000)).statuses() == [200]
    client = make_client().send(build_post(b"x" * 5001))
    assert client.statuses() == [413] and b"the body exceeds 5000 bytes:file_bytes" in client.received


def test_a_route_may_take_less() -> None:
    client = make_client().send(build_post(b"x" * 11).replace(b"/p", b"/small"))
    assert client.statuses() == [413] and b"note_bytes" in client.received
    assert make_client().send(build_post(b"x" * 10).replace(b"/p", b"/small")).statuses() == [200]


def test_other_routes_take_what_the_configuration_says() -> None:
    client = make_client().send(build_post(b"x" * 1001).replace(b"/p", b"/other"))
    assert client.statuses() == [413] and b"exceeds 1000 bytes:body_bytes" in client.received


def test_the_limit_applies_while_chunks_arrive() -> None:
    client = make_client().send(b"POST /p HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(5):
        client.send(b"3e8\r\n%b\r\n" % (b"x" * 1000))
    assert client.statuses() == []
    client.send(b"1\r\nx\r\n")
    assert client.statuses() == [413] and b"file_bytes" in client.received


def test_the_limit_applies_to_what_is_decompressed() -> None:
    for size, status in ((5000, 200), (5001, 413)):
        client = make_client().send(build_post(gzip.compress(b"x" * size), "content-encoding: gzip\r\n"))
        assert client.statuses() == [status], size


def test_each_request_of_a_connection_has_its_own_limit() -> None:
    client = make_client()
    client.send(build_post(b"x" * 4000), build_post(b"x" * 900).replace(b"/p", b"/q"))
    assert client.statuses() == [200, 200]
    assert client.send(build_post(b"x" * 4000).replace(b"/p", b"/q")).statuses()[-1] == 413


@pytest.mark.parametrize("key", ["", "x-no-key: 1\r\n"])
def test_ten_gigabytes_are_refused_before_they_arrive(key: str) -> None:
    head = f"POST /p HTTP/1.1\r\nhost: x\r\n{key}content-length: {10 << 30}\r\n\r\n".encode()
    client = MemoryClient(reply_ok, rules=RULES, settings=replace(SETTINGS)).send(head)
    assert client.statuses() == [413]
