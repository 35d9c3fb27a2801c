"""HTTP that is allowed, but rarely seen: pipelining, old versions, expectations, upgrades."""

from __future__ import annotations

import json

from tests.integration.server.abused_server import BODY, CHAT, GOOD, LAST, MB, AbusedServer, stream_request
from tests.integration.server.raw_http import (
    assert_error,
    build_request,
    connect,
    parse_responses,
    read_response,
    read_to_end,
    send,
)


def test_pipelining(battered: AbusedServer) -> None:
    """Responses come in request order, however long each takes."""
    paths = ["/v1/models/toy", "/health/live", "/nothing", "/v1/models"] * 10
    first = build_request("POST", CHAT, BODY)
    with connect(battered.port) as sock:
        sock.sendall(first + b"".join(build_request("GET", path) for path in paths))
        answer, rest = read_response(sock)
        assert json.loads(answer.body)["object"] == "chat.completion"
        for path in paths:
            answer, rest = read_response(sock, rest)
            assert answer.status == (404 if path == "/nothing" else 200)
            wanted = {"/v1/models/toy": b'"capabilities"', "/health/live": b'"live"', "/v1/models": b'"list"'}
            assert wanted.get(path, b'"unknown_url"') in answer.body
        assert not rest


def test_what_comes_before_garbage_is_answered(battered: AbusedServer) -> None:
    answers = send(battered.port, GOOD + build_request("GET", "/health/live") + b"\x00garbage\r\n\r\n")
    assert [answer.status for answer in answers] == [200, 200]


def test_http_1_0(battered: AbusedServer) -> None:
    for headers in ({}, {"connection": "keep-alive"}):
        [answer] = send(battered.port, build_request("POST", CHAT, BODY, headers, version="1.0"))
        assert answer.status == 200 and answer.headers["connection"] == "close"
    data = stream_request(5).replace(b"HTTP/1.1", b"HTTP/1.0")
    with connect(battered.port) as sock:
        sock.sendall(data)
        head, _, body = read_to_end(sock).partition(b"\r\n\r\n")
    assert b"chunked" not in head and body.startswith(b"data: ") and body.endswith(b"data: [DONE]\n\n")


def test_pipelined_requests_of_both_versions(battered: AbusedServer) -> None:
    """The second request's version must not affect the first response."""
    with connect(battered.port) as sock:
        sock.sendall(stream_request(200) + stream_request(5).replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer, rest = read_response(sock)
        assert answer.headers["transfer-encoding"] == "chunked" and answer.body.endswith(b"data: [DONE]\n\n")
        rest += read_to_end(sock)
    assert b"chunked" not in rest and rest.endswith(b"data: [DONE]\n\n")


def test_expect_100_continue(battered: AbusedServer) -> None:
    with connect(battered.port) as sock:
        sock.sendall(build_request("POST", CHAT, None, {"content-length": str(len(BODY)), "expect": "100-continue"}))
        assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(BODY)
        assert read_response(sock)[0].status == 200
    with connect(battered.port) as sock:  # too big: refused before anything is sent
        sock.sendall(build_request("POST", CHAT, None, {"content-length": str(100 * MB), "expect": "100-continue"}))
        [answer] = parse_responses(read_to_end(sock))
    assert_error(answer, 413)


def test_head(battered: AbusedServer) -> None:
    with connect(battered.port) as sock:
        sock.sendall(build_request("HEAD", "/v1/models") + LAST)
        data = read_to_end(sock)
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"content-length: " in head and rest.startswith(b"HTTP/1.1 200")


def test_an_upgrade_is_not_followed(battered: AbusedServer) -> None:
    """The upgrade is ignored. Java's HTTP client requests one on each first request."""
    upgrade = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAAP__"}
    asked = build_request("POST", CHAT, BODY, upgrade)
    for pieces in (1, 7, len(asked)):
        with connect(battered.port) as sock:
            for start in range(0, len(asked), len(asked) // pieces):
                sock.sendall(asked[start : start + len(asked) // pieces])
            answer, _ = read_response(sock)
            assert answer.status == 200, answer.body
            sock.sendall(asked + asked + LAST)
            assert [answer.status for answer in parse_responses(read_to_end(sock))] == [200, 200, 200]
    socket_key = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-key": "x" * 24}
    answers = send(battered.port, build_request("GET", "/health/live", headers=socket_key) + LAST)
    assert [answer.status for answer in answers] == [200, 200]
    [answer] = send(battered.port, build_request("CONNECT", "localhost:80", headers={"upgrade": "x"}) + LAST)
    assert_error(answer, 400)


def test_the_server_is_as_before(battered: AbusedServer) -> None:
    battered.assert_as_before()
