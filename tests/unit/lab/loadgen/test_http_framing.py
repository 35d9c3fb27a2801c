"""Heads, chunks and timestamps, however the network splits them."""

from __future__ import annotations

import pytest

from enginebay.lab.loadgen.http_framing import MalformedHttp, looks_complete, parse_body, parse_head

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def test_a_head_is_parsed_once_it_is_complete() -> None:
    assert parse_head(HEAD[:-1]) is None
    head = parse_head(HEAD + b"5\r\n")
    assert head is not None
    assert (head.status, head.size, head.chunked, head.length) == (200, len(HEAD), True, None)
    assert head.content_type == "text/event-stream" and not head.closes and not head.ends_with_connection


def test_the_real_head_comes_after_100_continue() -> None:
    before = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert parse_head(before) is None
    head = parse_head(before + HEAD)
    assert head is not None and head.status == 200 and head.size == len(before + HEAD)


@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/2 200\r\n\r\n", b"<html>", b"HTTP/1.1 abc\r\n\r\n"])
def test_what_is_not_http_is_garbage(raw: bytes) -> None:
    with pytest.raises(MalformedHttp):
        parse_head(raw)


def test_http_1_0_closes_unless_it_says_otherwise() -> None:
    old, kept = parse_head(b"HTTP/1.0 200 OK\r\n\r\n"), parse_head(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n")
    assert old is not None and old.closes and old.ends_with_connection
    assert kept is not None and not kept.closes


def test_a_byte_of_the_body_has_the_timestamp_of_the_part_that_completed_it() -> None:
    raw = HEAD + chunk(b"first") + chunk(b"second") + b"0\r\n\r\n"
    for cut in range(1, len(raw)):
        parts, stamps = [raw[:cut], raw[cut:]], [1.0, 2.0]
        head = parse_head(raw)
        assert head is not None
        body = parse_body(raw, head, parts, stamps)
        assert body.data == b"firstsecond" and body.complete
        end_of_first = len(HEAD) + len(b"5\r\nfirst")
        end_of_second = raw.index(b"second") + len(b"second")
        assert body.arrival_time(5) == (1.0 if cut >= end_of_first else 2.0)
        assert body.arrival_time(11) == (1.0 if cut >= end_of_second else 2.0)


def test_a_body_with_a_length() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd"
    head = parse_head(raw)
    assert head is not None and head.length == 4
    assert looks_complete(head, len(raw), b"") and not looks_complete(head, len(raw) - 1, b"")
    assert parse_body(raw, head, [raw], [1.0]).data == b"abcd"
    assert not parse_body(raw[:-1], head, [raw[:-1]], [1.0]).complete


@pytest.mark.parametrize("rest", [b"", b"5\r", b"5\r\nab", b"5\r\nabcde\r\n"])
def test_truncated_chunks_are_incomplete(rest: bytes) -> None:
    head = parse_head(HEAD)
    assert head is not None
    assert not parse_body(HEAD + rest, head, [HEAD + rest], [1.0]).complete


@pytest.mark.parametrize("size", [b"zz", b"", b"-6", b"+3", b"0x3", b"1_0"])
def test_a_chunk_without_a_size_is_garbage(size: bytes) -> None:
    head = parse_head(HEAD)
    assert head is not None
    raw = HEAD + size + b"\r\nabc\r\n"
    with pytest.raises(MalformedHttp, match="no size"):
        parse_body(raw, head, [raw], [1.0])
