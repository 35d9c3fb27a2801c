"""HTTP responses and server-sent events, split at any byte."""

from __future__ import annotations

import pytest

from enginebay.engines.openai.http_response import HttpResponseParser, MalformedResponse
from enginebay.engines.openai.sse_reader import SseReader
from tests.unit.engines.openai.scripted_server import USUAL, build_head, build_response, encode_chunked

BODY = b"data: one\n\n" * 5


def _read(data: bytes, size: int) -> tuple[HttpResponseParser, bytes]:
    reader = HttpResponseParser()
    body = b"".join(reader.feed(data[at : at + size]) for at in range(0, len(data), size))
    return reader, body


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_chunks_are_put_together_however_they_are_cut(size: int, chunk: int) -> None:
    reader, body = _read(build_head(transfer_encoding="chunked") + encode_chunked(BODY, chunk), size)
    assert (body, reader.status, reader.is_complete, reader.keep_alive) == (BODY, 200, True, True)


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_counted_body_ends_with_its_last_byte(size: int) -> None:
    reader, body = _read(build_response(404, {"error": "no"}), size)
    assert (body, reader.status, reader.is_complete) == (b'{"error": "no"}', 404, True)


def test_hints_trailers_and_extensions_are_passed_over() -> None:
    data = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + build_head(Transfer_Encoding="chunked")
    reader, body = _read(data + b"3;note=x\r\nabc\r\n0\r\nX-Trailer: y\r\n\r\n", 1)
    assert (body, reader.is_complete, reader.keep_alive) == (b"abc", True, True)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader, body = _read(build_head() + b"abc", 2)
    assert body == b"abc" and not reader.is_complete
    reader.end()
    assert reader.is_complete and not reader.keep_alive


def test_a_truncated_response_is_an_error() -> None:
    reader, _ = _read(build_head(transfer_encoding="chunked") + b"5\r\nab", 1)
    with pytest.raises(MalformedResponse, match="truncated response"):
        reader.end()


@pytest.mark.parametrize("extra", ["connection: close", "Connection: Close"])
def test_a_connection_to_be_closed_is_not_kept(extra: str) -> None:
    name, _, value = extra.partition(": ")
    reader, _ = _read(build_response(200, {}, **{name: value}), 100)
    assert reader.is_complete and not reader.keep_alive


def test_a_connection_with_more_than_the_answer_is_not_kept() -> None:
    reader, _ = _read(build_response(200, {}) + b"HTTP/1.1 200 Smuggled\r\n\r\n", 10_000)
    assert reader.is_complete and not reader.keep_alive


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
)
def test_what_is_no_answer_is_malformed(data: bytes) -> None:
    for size in (1, len(data)):
        with pytest.raises(MalformedResponse):
            _read(data, size)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 10_000])
def test_events_are_found_however_they_are_cut(size: int) -> None:
    data = b": waiting\n\ndata: a\r\n\r\nevent: x\nid: 4\ndata:b\ndata:  c\n\n\n\ndata: d"
    reader = SseReader()
    events = [event for at in range(0, len(data), size) for event in reader.feed(data[at : at + size])]
    assert events == [b"a", b"b\n c"]
    assert reader.end() == [b"d"]
    assert reader.end() == []


def test_an_event_without_end_is_malformed() -> None:
    reader = SseReader()
    with pytest.raises(MalformedResponse, match="MiB"):
        for _ in range(100):
            reader.feed(b"data: " + b"x" * 65_536)
    lines = SseReader()
    with pytest.raises(MalformedResponse, match="MiB"):
        for _ in range(100):
            lines.feed(b"data: " + b"x" * 65_536 + b"\n")


def test_the_usual_answer_has_six_events() -> None:
    assert len(SseReader().feed(USUAL)) == 6
