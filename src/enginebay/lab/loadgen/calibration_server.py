"""A server with known delays, to calibrate and verify the load generator.

    python -m enginebay.lab.loadgen.calibration_server --ttft-s 0.05 --itl-s 0.01

One thread and two queues of due writes. Every response streams `max_tokens` events: the first `ttft_s` after the request
arrives, each further one `itl_s` later; without delays, as fast as the sockets accept them. It prints its port on the
first line, and exits at the end of its standard input.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import select
import signal
import socket
import sys
from collections import deque
from contextlib import suppress
from functools import lru_cache
from time import monotonic

from enginebay.lab.loadgen.process_priority import raise_priority

_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_tokens"\s*:\s*(\d+)')
_DEFAULT_TOKENS = 16
_READ = 1 << 16
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_MAX_WRITES_PER_TURN = 16  # between two polls: a request's delay counts from the moment it is read
_BLOCKED_WAIT_S = 0.001  # before a full socket is retried
# What other load generators request before they start. Anything else returns 404.
_PAGES = {
    b"/health": {},
    b"/v1/models": {"object": "list", "data": [{"id": "known", "object": "model", "root": "known"}]},
}


def _encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _encode_event(text: str | None, finish: str | None = None, **more: object) -> bytes:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}, "text": text, "finish_reason": finish}]
    event = {"id": "known-0", "object": "chat.completion.chunk", "created": 0, "model": "known", "choices": choices}
    return b"data: " + json.dumps(event | more, separators=(",", ":")).encode() + b"\n\n"


@lru_cache(maxsize=256)
def build_stream_writes(tokens: int) -> tuple[bytes, ...]:
    """Return the writes of a response: one per token, the last with the end of the stream."""
    usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}
    writes = [_encode_chunk(_encode_event(" tick" if number % 2 else " tock")) for number in range(tokens - 1)]
    end = (
        _encode_chunk(_encode_event(" end", "length"))
        + _encode_chunk(_encode_event(None, usage=usage))
        + _encode_chunk(b"data: [DONE]\n\n")
        + b"0\r\n\r\n"
    )
    writes.append(end)
    writes[0] = _HEAD + writes[0]
    return tuple(writes)


def answer_plain_request(raw: bytes) -> bytes | None:
    """Return the response to a request other than a completion. None: it is a completion, which streams."""
    method, _, rest = raw.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method == b"POST" and path.endswith(b"/completions"):
        return None
    status, body = ("200 OK", _PAGES[path]) if method == b"GET" and path in _PAGES else ("404 Not Found", {})
    data = json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


class _OpenStream:
    """A response that is being written."""

    __slots__ = ("due", "next_index", "send", "unsent", "writes")

    def __init__(self, sock: socket.socket, writes: tuple[bytes, ...], due: float) -> None:
        self.send, self.writes, self.due = sock.send, writes, due
        self.next_index = 0
        self.unsent = b""

    def write_next(self) -> bool:
        """Write the next chunk, as far as the socket accepts it. Return whether more follows."""
        data = self.unsent or self.writes[self.next_index]
        try:
            sent = self.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent < len(data):
            self.unsent = data[sent:]
            return True
        self.unsent = b""
        self.next_index += 1
        return self.next_index < len(self.writes)


class CalibrationServer:
    """Serves until the end of its standard input."""

    def __init__(self, ttft_s: float, itl_s: float, port: int = 0) -> None:
        self._ttft_s, self._itl_s = ttft_s, itl_s
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._sockets: dict[int, socket.socket] = {}
        self._received: dict[int, bytes] = {}
        # Each queue is sorted by due time, since each kind of delay is constant.
        self._first_token_queue: deque[_OpenStream] = deque()
        self._next_token_queue: deque[_OpenStream] = deque()
        self._blocked: list[_OpenStream] = []

    def run(self) -> None:
        self._poll.register(sys.stdin, select.EPOLLIN)
        while True:
            wait_s = self._next_wait_s()
            if wait_s > 0:
                select.select([self._poll], [], [], wait_s)
            for descriptor, _ in self._poll.poll(0):
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor == sys.stdin.fileno():
                    return
                else:
                    self._handle_readable(descriptor)
            self._write_due()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[sock.fileno()] = sock
            self._received[sock.fileno()] = b""
            self._poll.register(sock, select.EPOLLIN)

    def _handle_readable(self, descriptor: int) -> None:
        sock = self._sockets[descriptor]
        try:
            data = sock.recv(_READ)
        except OSError:
            data = b""
        if not data:
            self._poll.unregister(descriptor)
            del self._sockets[descriptor], self._received[descriptor]
            sock.close()
            return
        raw = self._received[descriptor] + data
        end = raw.find(b"\r\n\r\n")
        length = _LENGTH.search(raw, 0, end) if end >= 0 else None
        if end < 0 or (length and len(raw) < end + 4 + int(length[1])):
            self._received[descriptor] = raw
            return
        self._received[descriptor] = b""
        response = answer_plain_request(raw)
        if response is not None:
            with suppress(OSError):
                sock.send(response)
            return
        tokens = _TOKENS.search(raw)
        due = monotonic() + self._ttft_s
        self._first_token_queue.append(
            _OpenStream(sock, build_stream_writes(max(1, int(tokens[1])) if tokens else _DEFAULT_TOKENS), due)
        )

    def _next_wait_s(self) -> float:
        """Return the seconds until a write is due; negative if it is overdue."""
        wait_s = _BLOCKED_WAIT_S if self._blocked else 1.0
        now = monotonic()
        for queue in (self._first_token_queue, self._next_token_queue):
            if queue:
                wait_s = min(wait_s, queue[0].due - now)
        return wait_s

    def _write_due(self) -> None:
        """Make some of the due writes, oldest first."""
        blocked, self._blocked = self._blocked, []
        for stream in blocked:
            self._write_stream(stream)
        first, later = self._first_token_queue, self._next_token_queue
        now = monotonic()
        for _ in range(_MAX_WRITES_PER_TURN):
            queue = first if first and (not later or first[0].due <= later[0].due) else later
            if not queue or queue[0].due > now:
                return
            self._write_stream(queue.popleft())

    def _write_stream(self, stream: _OpenStream) -> None:
        if stream.write_next():
            if stream.unsent:
                self._blocked.append(stream)
            else:
                stream.due += self._itl_s
                self._next_token_queue.append(stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ttft-s", type=float, default=0.0)
    parser.add_argument("--itl-s", type=float, default=0.0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--core", type=int)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches the whole group; exit without a traceback
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    raise_priority()
    server = CalibrationServer(options.ttft_s, options.itl_s, options.port)
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection would count as the client's delay
    print(server.port, flush=True)
    server.run()


if __name__ == "__main__":
    main()
