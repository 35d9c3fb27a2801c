"""An OpenAI-compatible upstream that costs next to nothing: every answer was built before it was asked for.

    python -m bench.server.mock_upstream --port 9001 --core 1

It stands behind the gateways, so that what is measured is theirs, and in the place of a server, so that the load
client's own ceiling is known. One process, one thread. A streamed token is one event; an event is one chunk and one write,
in turn over all streams, unless the prompt asks for more in one: "in bursts of 16". A fast engine's tokens come several
at a time, and how many share a chunk decides the work of everyone who passes them on.
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
_reply_cache: dict[bytes, bytes | tuple[bytes, ...]] = {}  # whole requests seen before, and their replies


def build_response(body: bytes, kind: str = "application/json", status: str = "200 OK") -> bytes:
    """A whole HTTP response."""
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
    """Never the same twice in a row: LiteLLM ends a stream that repeats itself."""
    return [(" tick", " tock")[number % 2] for number in range(tokens)]


@lru_cache(maxsize=64)
def build_whole_response(tokens: int) -> bytes:
    """The answer of a request that does not stream."""
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
    """The writes of a request that streams: head and role, one for each `burst` of tokens, the end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    role = _encode_chunk(_encode_event({"role": "assistant", "content": ""}))
    events = [_encode_event({"content": word}) for word in _make_words(tokens)]
    bursts = [_encode_chunk(b"".join(events[place : place + burst])) for place in range(0, tokens, burst)]
    end = (
        _encode_chunk(_encode_event({}, "length", usage=_build_usage(tokens)))
        + _encode_chunk(b"data: [DONE]\n\n")
        + b"0\r\n\r\n"
    )
    return (head + role, *bursts, end)


MODELS = build_response(
    _dump_json({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "bench"}]})
)
# Routers ask what they have found before they use it.
INFO = build_response(
    _dump_json({"model_path": MODEL, "tokenizer_path": MODEL, "model_type": "llama", "is_generation": True})
)
HEALTHY = build_response(b"{}")
NOT_FOUND = build_response(b'{"error":{"message":"no such path"}}', status="404 Not Found")


def choose_reply(head: bytes, body: bytes) -> bytes | tuple[bytes, ...]:
    """What to write for one request: at once, or one after the other."""
    path = head.split(b" ", 2)[1].partition(b"?")[0]
    if path.endswith(b"/chat/completions"):
        found = _TOKENS.search(body)
        tokens = int(found.group(1)) if found else _DEFAULT_TOKENS
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
    """Head, body and length of the first request, once it is whole."""
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
    """One client: what it sent so far, and what it still gets."""

    __slots__ = ("left", "received", "socket")

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.received = b""
        self.left: list[bytes] = []  # writes of the running stream, the next one last

    def feed(self, data: bytes) -> bool:
        """Take bytes; answer each request that is whole. True: a stream has begun."""
        known = None if self.received else _reply_cache.get(data)
        if known is not None:
            return self._send_reply(known)
        self.received += data
        began = False
        while (found := split_request(self.received)) is not None:
            head, body, stop = found
            what = choose_reply(head, body)
            if len(_reply_cache) < _MAX_CACHED:
                _reply_cache[self.received[:stop]] = what
            self.received = self.received[stop:]
            began |= self._send_reply(what)
        return began

    def _send_reply(self, what: bytes | tuple[bytes, ...]) -> bool:
        if isinstance(what, bytes):
            self.socket.send(what)
            return False
        self.left = list(reversed(what))
        return True

    def write_next(self) -> bool:
        """Write the next piece. False: that was the last one."""
        data = self.left.pop()
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False  # gone: its closing is read where all others are
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
        ended = [number for number, one in streaming.items() if not one.write_next()]
        for number in ended:
            del streaming[number]


def _read_connection(
    number: int, connections: dict[int, UpstreamConnection], streaming: dict[int, UpstreamConnection]
) -> bool:
    """False when the client is gone, or does not speak HTTP/1.1: routers try other protocols first."""
    one = connections[number]
    try:
        data = one.socket.recv(_READ)
        if data and one.feed(data):
            streaming[number] = one
    except (OSError, IndexError, ValueError):
        return False
    return bool(data)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--core", type=int)
    chosen = options.parse_args()
    if chosen.core is not None:
        os.sched_setaffinity(0, {chosen.core})
    serve(chosen.port)
