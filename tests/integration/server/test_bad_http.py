"""Bad HTTP: too big, too slow, malformed or cut off. Others are answered meanwhile, and the server is as new afterwards."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.server.abused_server import (
    BODY,
    BODY_BYTES,
    CHAT,
    COMPLETIONS,
    GOOD,
    HELLO,
    MB,
    AbusedServer,
    stream_request,
)
from tests.integration.server.raw_http import (
    RawResponse,
    assert_error,
    build_request,
    connect,
    parse_responses,
    read_response,
    read_to_end,
    send,
    wait_until,
)

# Too big


def send_all(sock: socket.socket, data: bytes) -> None:
    """A hundred times. The server reads on for five seconds after its refusal, which a machine that stalls may need."""
    began = time.monotonic()
    try:
        for _ in range(100):
            sock.sendall(data)
    except ConnectionError:
        assert time.monotonic() - began > 4.5, "the server did not read what was still being sent"


@pytest.mark.slow
def test_a_body_of_100_mb(battered: AbusedServer) -> None:
    """The client sends all of it before it looks for an answer, and still gets to read one."""
    head = build_request("POST", CHAT, None, {"content-type": "application/json", "content-length": str(100 * MB)})
    with connect(battered.port) as sock:
        sock.sendall(head)
        send_all(sock, b" " * MB)
        [answer] = parse_responses(read_to_end(sock))
    error = assert_error(answer, 413)
    assert str(BODY_BYTES) in error["message"] and answer.headers["connection"] == "close"


def test_a_body_of_100_mb_by_a_client_library(battered: AbusedServer) -> None:
    found = battered.client.post(CHAT, content=b" " * (100 * MB))
    assert_error(RawResponse(found.status_code, dict(found.headers), found.content), 413)


def test_100_mb_in_chunks(battered: AbusedServer) -> None:
    with connect(battered.port) as sock:
        sock.sendall(build_request("POST", CHAT, None, {"transfer-encoding": "chunked"}))
        send_all(sock, b"%x\r\n%b\r\n" % (MB, b" " * MB))
        [answer] = parse_responses(read_to_end(sock))
    assert_error(answer, 413)


def test_a_length_beyond_all_numbers(battered: AbusedServer) -> None:
    for length in ("9" * 15, "9" * 40, "9" * 5000, "-1", "1e3", "+5", "0x10", "5 5", ""):
        [answer] = send(battered.port, build_request("POST", CHAT, b"", {"content-length": length}))
        assert_error(answer, answer.status)
        assert answer.status in (400, 413)


def test_a_million_entries_of_logit_bias(battered: AbusedServer) -> None:
    body = {"model": "toy", "messages": HELLO, "logit_bias": {str(number): 1 for number in range(10**6)}}
    assert_error(battered.post(CHAT, json.dumps(body).encode()), 413)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [gzip.compress, zlib.compress])
def test_a_decompression_bomb(battered: AbusedServer, wrap: Any) -> None:
    encoding = "gzip" if wrap is gzip.compress else "deflate"
    for size in (100 * MB, BODY_BYTES + 1):
        packed = wrap(b" " * size)
        assert len(packed) < MB
        answer = battered.post(CHAT, packed, {"content-encoding": encoding})
        assert_error(answer, 413)
    twice = wrap(wrap(b" " * 100 * MB))
    assert battered.post(CHAT, twice, {"content-encoding": encoding}).status == 400


def test_compressed_bodies(battered: AbusedServer) -> None:
    whole = gzip.compress(BODY)
    assert battered.post(CHAT, whole, {"content-encoding": "gzip"}).status == 200
    assert battered.post(CHAT, zlib.compress(BODY), {"content-encoding": "deflate"}).status == 200
    exactly = BODY + b" " * (BODY_BYTES - len(BODY))
    assert battered.post(CHAT, gzip.compress(exactly), {"content-encoding": "gzip"}).status == 200
    for bad in (
        BODY,
        whole[:-9],
        whole[:20],
        whole + whole,
        whole + b"x",
        b"",
        b"\x1f\x8b",
        whole[:30] + b"\0\0" + whole[32:],
    ):
        assert_error(battered.post(CHAT, bad, {"content-encoding": "gzip"}), 400)
    for encoding in ("br", "zstd", "gzip, gzip", "x" * 5000):
        assert_error(battered.post(CHAT, whole, {"content-encoding": encoding}), 415, asked=encoding)


@pytest.mark.parametrize("pieces", [1, 50])
def test_headers_over_the_limit(battered: AbusedServer, pieces: int) -> None:
    """In one piece or in many, one long header or many short ones, as part of the first request or of a later one."""
    long = {"x-long": "x" * 60_000}
    many = {f"x-{number}": "x" * 50 for number in range(1000)}
    for headers in (long, many):
        data = build_request("POST", CHAT, BODY, headers)
        for before in (b"", build_request("GET", "/health/live")):
            with connect(battered.port) as sock:
                if before:
                    sock.sendall(before)
                    assert read_response(sock)[0].status == 200
                for start in range(0, len(data), len(data) // pieces + 1):
                    sock.sendall(data[start : start + len(data) // pieces + 1])
                [answer] = parse_responses(read_to_end(sock))
            assert_error(answer, 431)


def test_a_request_line_of_64_kib(battered: AbusedServer) -> None:
    [answer] = send(battered.port, build_request("GET", "/" + "x" * (64 << 10)))
    assert_error(answer, 431)


def test_headers_without_end(battered: AbusedServer) -> None:
    """Also behind a request that is being answered, where nobody waits for them."""
    for before in (b"", stream_request(2000)):
        with connect(battered.port) as sock:
            sock.sendall(before + b"GET / HTTP/1.1\r\n")
            sent = 0
            try:
                while sent < 10 * MB:
                    sent += sock.send(b"x-more: " + b"x" * 8000 + b"\r\n")
            except (ConnectionError, TimeoutError):
                pass
            data = read_to_end(sock)
        assert data.startswith(b"HTTP/1.1 200" if before else b"HTTP/1.1 431")


def test_headers_at_the_limit_are_accepted(battered: AbusedServer) -> None:
    assert battered.post(CHAT, BODY, {"x-long": "x" * 31_000}).status == 200


# Too slow


def slow(battered: AbusedServer, data: bytes, pace_s: float) -> tuple[bytes, float]:
    """Send one byte at a time until the server has had enough."""
    began = time.monotonic()
    with connect(battered.port) as sock:
        sock.settimeout(pace_s)
        for place in range(len(data)):
            try:
                sock.send(data[place : place + 1])
                found = sock.recv(65536)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            sock.settimeout(10)
            return found + read_to_end(sock), time.monotonic() - began
    raise AssertionError("the server took it all")


def test_slow_senders_time_out_and_do_not_block_others(battered: AbusedServer) -> None:
    assert any(_answers_beside_slow_senders(battered) for _ in range(3)), "the others had to wait for them"


def _answers_beside_slow_senders(battered: AbusedServer) -> int:
    """How many others were answered before the first slow sender was; on a machine that stalls, perhaps none."""
    head, _, _ = GOOD.partition(b"\r\n\r\n")
    found = 0
    with ThreadPoolExecutor(24) as threads:
        headers = [threads.submit(slow, battered, GOOD, 0.1) for _ in range(10)]
        bodies = [threads.submit(slow_body, battered, head) for _ in range(10)]
        wait_until(lambda: battered.read_gauge("enginebay_connections") > 20 or headers[0].done(), 30, "all of them")
        while not all(one.done() for one in (*headers, *bodies)):
            battered.assert_answers()
            found += not any(one.done() for one in (*headers, *bodies))
        for one in headers:
            data, took_s = one.result()
            assert_error(parse_responses(data)[0], 408)
            assert 3.9 < took_s < 30
        for one in bodies:
            data, took_s = one.result()
            assert_error(parse_responses(data)[0], 408)
            assert 5.9 < took_s < 30
    return found


def slow_body(battered: AbusedServer, head: bytes) -> tuple[bytes, float]:
    began = time.monotonic()
    with connect(battered.port) as sock:
        sock.sendall(head + b"\r\n\r\n{")
        return read_to_end(sock), time.monotonic() - began


def test_a_connection_that_says_nothing_is_closed(battered: AbusedServer) -> None:
    began = time.monotonic()
    with connect(battered.port) as sock:
        assert read_to_end(sock) == b""
    assert 3.9 < time.monotonic() - began < 30


# Malformed


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),  # a TLS hello
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        bytes(range(256)) * 4,
        b"\x00" * 100,
        b"GET\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nho st: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: local\x00host\r\n\r\n",
        b"GET / HTTP/1.1\nhost: localhost\n\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n folded: x\r\n\r\n",
        b"G\x01T / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"NONSENSE / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /\x7f\x80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
def test_garbage(battered: AbusedServer, data: bytes) -> None:
    with connect(battered.port) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        answers = parse_responses(read_to_end(sock))
    assert len(answers) <= 1
    for answer in answers:
        assert_error(answer, 400)


@pytest.mark.parametrize(
    "headers",
    [
        "content-length: 4\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 4",
        "content-length: 4\r\ncontent-length: 4",
        "content-length: 4\r\ncontent-length: 30",
        "content-length: 4, 30",
        "transfer-encoding: identity\r\ntransfer-encoding: chunked\r\ncontent-length: 4",
        "transfer-encoding: xchunked",
        "transfer-encoding: chunked, identity",
        "transfer-encoding : chunked\r\ncontent-length: 4",
        "content-length : 4",
    ],
)
def test_no_second_request_is_smuggled_in(battered: AbusedServer, headers: str) -> None:
    """A body with ambiguous framing gets one refusal, then the connection closes."""
    inner = b"0\r\n\r\nGET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    data = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n\r\n".encode() + inner
    [answer] = send(battered.port, data)
    assert_error(answer, 400)


@pytest.mark.parametrize(
    "chunk", [b"-1\r\n", b"zz\r\n", b"ffffffffffffffffff\r\n", b"4\r\nabcdef\r\n", b"4;" + b"x" * 100_000]
)
def test_malformed_chunks(battered: AbusedServer, chunk: bytes) -> None:
    data = build_request("POST", CHAT, None, {"transfer-encoding": "chunked"}) + chunk
    with connect(battered.port) as sock:
        sock.sendall(data)
        [answer] = parse_responses(read_to_end(sock))
    assert_error(answer, answer.status)
    assert answer.status in (400, 408, 413)


def test_trailers_are_ignored(battered: AbusedServer) -> None:
    head = build_request("POST", CHAT, None, {"transfer-encoding": "chunked"})
    chunks = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
    with connect(battered.port) as sock:
        sock.sendall(head + chunks + b"content-encoding: gzip\r\nx-request-id: later\r\nhost: evil.example\r\n\r\n")
        answer, _ = read_response(sock)
    assert answer.status == 200 and answer.headers["x-request-id"] != "later"
    with connect(battered.port) as sock:
        sock.sendall(head + chunks)
        send_all(sock, b"x-long: " + b"x" * MB)
        [answer] = parse_responses(read_to_end(sock))
    assert_error(answer, 413)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST"),
        ("DELETE", CHAT, "POST"),
        ("PUT", COMPLETIONS, "POST"),
        ("HEAD", CHAT, "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/toy", "GET, HEAD"),
        ("POST", "/health/live", "GET, HEAD"),
        ("PATCH", "/metrics", "GET, HEAD"),
        ("TRACE", "/", "GET, HEAD"),
        ("OPTIONS", CHAT, "POST"),
    ],
)
def test_wrong_methods(battered: AbusedServer, method: str, path: str, allow: str) -> None:
    [answer] = send(battered.port, build_request(method, path, headers={"connection": "close"}))[:1]
    assert answer.status == 405 and answer.headers["allow"] == allow
    if method != "HEAD":
        assert_error(answer, 405, asked=path)


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/v1", "/v1/", "///", "/v1/chat/completions//", "/V1/models", "/../../etc/passwd", "/%2e%2e/etc/passwd",
     "/v1/models//", "/etc/passwd", "*", "http://localhost/v1/models", "/docs/../metrics", "/v1/chat//completions"],
)  # fmt: skip
def test_unknown_paths(battered: AbusedServer, path: str) -> None:
    [answer] = send(battered.port, build_request("GET", path, headers={"connection": "close"}))
    assert assert_error(answer, 404, asked=path)["code"] == "unknown_url"


# Cut off


def test_half_closed_connections(battered: AbusedServer) -> None:
    """A half-closed connection counts as a disconnect, at any point of a request."""
    for data in (b"", b"GET", GOOD[:40], GOOD[:-10], GOOD, stream_request(4000)):
        with connect(battered.port) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            read_to_end(sock)
    battered.wait_idle()


def test_a_thousand_disconnects_mid_stream(battered: AbusedServer) -> None:
    data = stream_request(4000)
    streamed = threading.Semaphore(0)

    def leave(number: int) -> None:
        with connect(battered.port) as sock:
            sock.sendall(data)
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
            streamed.release()
            if number % 2:  # without so much as a goodbye
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    before = _gone(battered)
    with ThreadPoolExecutor(50) as threads:
        list(threads.map(leave, range(1000)))
    battered.wait_idle()
    assert _gone(battered) - before > 900  # a machine that stalls may have some answered in full
    wait_until(lambda: battered.read_gauge("enginebay_connections") <= 3, 30, "the end of all connections")


def _gone(battered: AbusedServer) -> float:
    """Count the requests whose client disconnected."""
    lines = battered.client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if "requests_total{" in line and 'status="499"' in line)


def test_the_server_is_as_before(battered: AbusedServer) -> None:
    battered.assert_as_before()
