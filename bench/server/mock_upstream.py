"""A mock OpenAI-compatible upstream at almost no cost: every response is built in advance.

    python -m bench.server.mock_upstream --port 9001 --core 1

Gateways run in front of it, so that only their own cost is measured; measured directly, it gives the load generator's ceiling.
One process, one thread. A streamed token is one event, one chunk and one write, in turn over all streams, unless the prompt
asks for more per chunk: "in bursts of 16". A fast engine emits several tokens at a time, and how many share a chunk decides
how much work a proxy has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import socket
from functools import lru_cache
from typing import Any

from bench.server.http_responses import split_chunks

MODEL = "bench"
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"transfer-encoding:[^\r]*chunked", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_(?:completion_)?tokens"\s*:\s*(\d+)')
_BURST = re.compile(rb"in bursts of (\d+)")
_STREAM = re.compile(rb'"stream"\s*:\s*true')
_DEFAULT_TOKENS = 8
_PROMPT_TOKENS = 12
_READ = 1 << 16
_MAX_CACHED = 1000
_reply_cache: dict[bytes, bytes | tuple[bytes, ...]] = {}  # raw requests and their replies


def build_response(body: bytes, kind: str = "application/json", status: str = "200 OK") -> bytes:
    """Build a complete HTTP response."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _dump_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _build_usage(tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": _PROMPT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": _PROMPT_TOKENS + tokens,
    }


def _build_completion(kind: str, choice: dict[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"index": 0, **choice}
    return {"id": "chatcmpl-0", "object": kind, "created": 1700000000, "model": MODEL, "choices": [choice], **more}


def _make_words(tokens: int) -> list[str]:
    """Make words that never repeat in a row: LiteLLM ends a stream that repeats itself."""
    return [(" tick", " tock")[number % 2] for number in range(tokens)]


@lru_cache(maxsize=64)
def build_whole_response(tokens: int) -> bytes:
    """Build the response to a request that does not stream."""
    message = {"role": "assistant", "content": "".join(_make_words(tokens))}
    choice = {"message": message, "finish_reason": "length"}
    return build_response(_dump_json(_build_completion("chat.completion", choice, usage=_build_usage(tokens))))


def _encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _encode_event(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"delta": delta, "finish_reason": finish}
    return b"data: " + _dump_json(_build_completion("chat.completion.chunk", choice, **more)) + b"\n\n"


@lru_cache(maxsize=64)
def build_stream_writes(tokens: int, burst: int = 1) -> tuple[bytes, ...]:
    """Build the writes of a streamed response: head and role, one for each `burst` of tokens, the end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    role = _encode_chunk(_encode_event({"role": "assistant", "content": ""}))
    events = [_encode_event({"content": word}) for word in _make_words(tokens)]
    bursts = [_encode_chunk(b"".join(events[start : start + burst])) for start in range(0, tokens, burst)]
    end = (
        _encode_chunk(_encode_event({}, "length", usage=_build_usage(tokens)))
        + _encode_chunk(b"data: [DONE]\n\n")
        + b"0\r\n\r\n"
    )
    return (head + role, *bursts, end)


MODELS = build_response(
    _dump_json({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "bench"}]})
)
# Routers query a backend before they use it.
INFO = build_response(
    _dump_json({"model_path": MODEL, "tokenizer_path": MODEL, "model_type": "llama", "is_generation": True})
)
HEALTHY = build_response(b"{}")
NOT_FOUND = build_response(b'{"error":{"message":"no such path"}}', status="404 Not Found")


def choose_reply(head: bytes, body: bytes) -> bytes | tuple[bytes, ...]:
    """Return the reply to one request: a single write, or the writes of a stream."""
    path = head.split(b" ", 2)[1].partition(b"?")[0]
    if path.endswith(b"/chat/completions"):
        limit = _TOKENS.search(body)
        tokens = int(limit.group(1)) if limit else _DEFAULT_TOKENS
        if not _STREAM.search(body):
            return build_whole_response(tokens)
        burst = _BURST.search(body)
        return build_stream_writes(tokens, int(burst.group(1)) if burst else 1)
    if path.endswith(b"/models"):
        return MODELS
    if path.startswith(b"/health") or path == b"/":
        return HEALTHY
    return INFO if path.endswith(b"_info") else NOT_FOUND


def split_request(raw: bytes) -> tuple[bytes, bytes, int] | None:
    """Return head, body and length of the first request, or None while it is incomplete."""
    end = raw.find(_HEAD_END)
    if end < 0:
        return None
    head, start = raw[:end], end + len(_HEAD_END)
    if _CHUNKED.search(head):
        last = raw.find(b"0" + _HEAD_END, start)
        pieces = split_chunks(raw, start) if last >= 0 else None
        return None if pieces is None else (head, b"".join(pieces), last + 1 + len(_HEAD_END))
    length = _LENGTH.search(head)
    stop = start + (int(length.group(1)) if length else 0)
    return (head, raw[start:stop], stop) if len(raw) >= stop else None


class UpstreamConnection:
    """One client connection: bytes received, and writes left to send."""

    __slots__ = ("left", "received", "socket")

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.received = b""
        self.left: list[bytes] = []  # writes of the running stream, next one last

    def feed(self, data: bytes) -> bool:
        """Add bytes and answer each complete request. Return True if a stream has begun."""
        cached = None if self.received else _reply_cache.get(data)
        if cached is not None:
            return self._send_reply(cached)
        self.received += data
        began = False
        while (request := split_request(self.received)) is not None:
            head, body, stop = request
            reply = choose_reply(head, body)
            if len(_reply_cache) < _MAX_CACHED:
                _reply_cache[self.received[:stop]] = reply
            self.received = self.received[stop:]
            began |= self._send_reply(reply)
        return began

    def _send_reply(self, reply: bytes | tuple[bytes, ...]) -> bool:
        if isinstance(reply, bytes):
            self.socket.send(reply)
            return False
        self.left = list(reversed(reply))
        return True

    def write_next(self) -> bool:
        """Write the next piece. Return False after the last one."""
        data = self.left.pop()
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False  # the read loop handles the close
        if sent < len(data):
            self.left.append(data[sent:])
        return bool(self.left)


def serve(port: int) -> None:
    """Answer until killed."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    listener.setblocking(False)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    connections: dict[int, UpstreamConnection] = {}
    streaming: dict[int, UpstreamConnection] = {}
    while True:
        for number, _ in poll.poll(0 if streaming else -1):
            if number == listener.fileno():
                sock, _ = listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[sock.fileno()] = UpstreamConnection(sock)
                poll.register(sock, select.EPOLLIN)
            elif not _read_connection(number, connections, streaming):
                streaming.pop(number, None)
                connections.pop(number).socket.close()
        ended = [number for number, connection in streaming.items() if not connection.write_next()]
        for number in ended:
            del streaming[number]


def _read_connection(
    number: int, connections: dict[int, UpstreamConnection], streaming: dict[int, UpstreamConnection]
) -> bool:
    """Read a connection. Return False if the client left or does not speak HTTP/1.1: routers try other protocols first."""
    connection = connections[number]
    try:
        data = connection.socket.recv(_READ)
        if data and connection.feed(data):
            streaming[number] = connection
    except (OSError, IndexError, ValueError):
        return False
    return bool(data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--core", type=int)
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    serve(args.port)
