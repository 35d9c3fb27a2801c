"""The load generator counts exactly however the network splits a response, and rejects wrong ones."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from bench.server.http_responses import check_stream, check_whole, parse_body, parse_head, split_chunks
from bench.server.loadgen import (
    HttpWorkload,
    LoadClient,
    LoadResult,
    _LoadConnection,
    build_chat_body,
    merge_results,
    percentile,
)
from bench.server.mock_upstream import build_stream_writes, build_whole_response, choose_reply, split_request
from bench.server.thresholds import judge_interval

_TOKENS = 5


class _ScriptedServer:
    """A listening socket that answers each connection with given pieces of bytes."""

    def __init__(self, answers: list[list[bytes]]) -> None:
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for pieces in self._answers:
            connection, _ = self._listener.accept()
            with connection:
                for piece in pieces:
                    connection.recv(65536)
                    connection.sendall(piece)
                connection.recv(65536)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def connection() -> Iterator[_LoadConnection]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = _LoadConnection(listener.getsockname())
        yield connection
        connection.socket.close()


@pytest.mark.parametrize("burst", [1, 3])
def test_a_stream_cut_at_any_byte_is_counted_exactly(connection: _LoadConnection, burst: int) -> None:
    raw = b"".join(build_stream_writes(_TOKENS, burst))
    for cut in range(1, len(raw)):
        connection.send(b"x")
        assert connection.receive(raw[:cut], True) is None, cut
        found = connection.receive(raw[cut:], True)
        assert found is not None, cut
        assert check_stream(200, found[0], _TOKENS) == (_TOKENS, None)
        assert connection.ttft > 0


def test_a_stream_that_comes_byte_by_byte_is_counted_exactly(connection: _LoadConnection) -> None:
    raw = b"".join(build_stream_writes(2))
    connection.send(b"x")
    found = [connection.receive(raw[index : index + 1], True) for index in range(len(raw))]
    assert [one is not None for one in found] == [False] * (len(raw) - 1) + [True]


def test_a_marker_split_by_a_chunk_is_still_one_event() -> None:
    body = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
    for cut in range(1, len(body)):
        pieces = (body[:cut], body[cut:])
        raw = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        found = split_chunks(raw, 0)
        assert found is not None
        assert check_stream(200, b"".join(found), 1) == (1, None)


def test_chunks_are_counted() -> None:
    for burst, content_chunks in ((1, 6), (3, 2), (16, 1)):
        raw = b"".join(build_stream_writes(6, burst))
        head = parse_head(raw)
        assert head is not None
        found = parse_body(raw, head)
        assert found is not None
        assert found[1] == content_chunks + 3  # role, finish, [DONE]


def _stream(*texts: str, done: str = "data: [DONE]\n\n") -> bytes:
    events = "".join(f'data: {{"choices":[{{"delta":{{"content": "{text}"}}}}]}}\n\n' for text in texts)
    return (events + done).encode()


@pytest.mark.parametrize(
    "body",
    [
        _stream("a", "b", done=""),
        _stream("a"),
        _stream("a", "b", "c"),
        _stream("a", ""),  # an event without text is not a token
        _stream("a", "b") + b"data: [DONE]\n\n",
        _stream("a", "b") + b'data: {"error":{}}\n\n',
        b"data: [DONE]\n\n",
    ],
)
def test_a_wrong_stream_is_lost(body: bytes) -> None:
    assert check_stream(200, body, 2)[1] is not None


def test_quotes_inside_a_text_are_not_events() -> None:
    assert check_stream(200, _stream(r"\"content\": \"x", r"\""), 2) == (2, None)


def test_a_wrong_response_is_lost() -> None:
    assert check_whole(200, b'{"usage":{"completion_tokens": 8}}', 8) == (8, None)
    for status, body in ((500, b'{"usage":{"completion_tokens":8}}'), (200, b"{}"), (200, b'{"completion_tokens":7}')):
        assert check_whole(status, body, 8)[1] is not None


def _load(url: str, requests: int) -> HttpWorkload:
    return HttpWorkload(
        url, [build_chat_body("m", 8, False)], connections=1, requests=requests, tokens=8, patience_s=30
    )


def test_a_connection_closed_mid_response_is_lost() -> None:
    server = _ScriptedServer([[build_whole_response(8)[:-5]]])
    try:
        # The server waits for a second request that never comes: the timeout ends it.
        result = LoadClient(
            HttpWorkload(server.url, [build_chat_body("m", 8, False)], 1, requests=1, tokens=8, patience_s=0.2)
        ).run()
    finally:
        server.close()
    assert (result.requests, result.lost) == (0, 1)


def test_a_kept_alive_connection_closed_between_requests_is_reopened() -> None:
    server = _ScriptedServer([[build_whole_response(8)], [build_whole_response(8)]])
    try:
        result = LoadClient(_load(server.url, 2)).run()
    finally:
        server.close()
    assert (result.requests, result.lost, result.reconnects) == (2, 0, 1)


def test_the_upstream_answers_as_requested() -> None:
    assert choose_reply(b"POST /v1/chat/completions HTTP/1.1", b'{"max_tokens": 3}') == build_whole_response(3)
    body = b'{"max_tokens":4,"stream": true,"messages":"in bursts of 2"}'
    assert choose_reply(b"POST /v1/chat/completions HTTP/1.1", body) == build_stream_writes(4, 2)


def test_the_upstream_reads_chunked_requests() -> None:
    raw = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert split_request(raw[:-1]) is None
    assert split_request(raw) == (raw[: raw.index(b"\r\n\r\n")], b"abcde", len(raw))


def test_results_of_parallel_processes_add_up() -> None:
    both = merge_results([LoadResult(2.0, 4, 8, lost=1, latencies_s=[1.0]), LoadResult(4.0, 4, 8, latencies_s=[3.0])])
    assert (both.requests_per_s, both.tokens_per_s, both.lost) == (2.0, 4.0, 1)
    assert percentile(both.latencies_s, 95) == 3.0


@pytest.mark.parametrize(
    ("low", "high", "more", "less"),
    [
        (1.1, 1.2, "met", "MISSED"),
        (0.8, 0.9, "MISSED", "met"),
        (0.9, 1.1, "met by the interval", "met by the interval"),
    ],
)
def test_an_interval_that_spans_the_target_is_undecided(low: float, high: float, more: str, less: str) -> None:
    assert judge_interval(low, high, 1.0, higher_is_better=True) == more
    assert judge_interval(low, high, 1.0, higher_is_better=False) == less
