"""The load client: raw sockets and epoll, so that its own ceiling is far above what it measures.

    python -m bench.server.loadgen --url http://127.0.0.1:9001 --connections 32 --seconds 3
    python -m bench.server.loadgen --url http://127.0.0.1:9001 --connections 64 --tokens 128 --stream --seconds 3

A closed loop: every connection sends its next request when the answer to the last one is whole. While a stream runs, its
bytes are only collected; they are taken apart when it has ended, so it does not matter where the network cut them.
An answer that is not exactly right is lost, and says why.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.server.http_responses import (
    CONTENT,
    LAST_CHUNK,
    ResponseHead,
    check_stream,
    check_whole,
    parse_body,
    parse_head,
)

_READ = 1 << 18
_REASONS_KEPT = 5
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class HttpWorkload:
    """What to send, and how much of it."""

    url: str  # of the server; requests go to `path` there
    bodies: Sequence[Mapping[str, Any]]  # taken in turn
    connections: int
    seconds: float = 0.0  # no request begins after that; 0: only `requests` counts
    requests: int = 0  # that many in all; 0: only `seconds` counts
    stream: bool = False
    tokens: int | None = None  # output tokens that each answer must have
    by_usage: bool = False  # count streamed tokens by the server's usage, not by its events
    ends_with_done: bool = True  # a stream must end with `data: [DONE]`
    headers: Mapping[str, str] = field(default_factory=dict)
    path: str = "/v1/chat/completions"
    patience_s: float = 120.0  # without a byte from anyone, all that runs is lost


@dataclass(slots=True)
class LoadResult:
    """What came back."""

    seconds: float = 0.0  # from the first request to the last byte
    requests: int = 0  # answered right
    tokens: int = 0
    chunks: int = 0  # HTTP chunks that streamed answers came in: how many tokens share one
    lost: int = 0
    reconnects: int = (
        0  # a kept connection was closed before its next request was answered, which then went over a new one
    )
    reasons: list[str] = field(default_factory=list)  # the first few
    latencies_s: list[float] = field(default_factory=list)
    ttfts_s: list[float] = field(default_factory=list)

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """By rank, so it is always one of the values."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]


def merge_results(results: Sequence[LoadResult]) -> LoadResult:
    """Several processes' results as one: they ran side by side."""
    whole = LoadResult(seconds=max(one.seconds for one in results))
    for one in results:
        whole.requests += one.requests
        whole.tokens += one.tokens
        whole.chunks += one.chunks
        whole.lost += one.lost
        whole.reconnects += one.reconnects
        whole.reasons += one.reasons
        whole.latencies_s += one.latencies_s
        whole.ttfts_s += one.ttfts_s
    return whole


def build_request(load: HttpWorkload, body: Mapping[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {load.path} HTTP/1.1", f"Host: {urlsplit(load.url).netloc}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in load.headers.items()]
    lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


class _LoadConnection:
    """One client and its running request."""

    __slots__ = ("answered", "began", "head", "parts", "request", "socket", "ttft")

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=10)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.began = 0.0
        self.answered = 0  # requests so far
        self.request = b""
        self.head: ResponseHead | None = None
        self.ttft = 0.0
        self.parts: list[bytes] = []

    def send(self, request: bytes, began: float | None = None) -> None:
        self.request, self.head, self.ttft, self.parts = request, None, 0.0, []
        self.began = time.perf_counter() if began is None else began
        if self.socket.send(request) != len(request):
            raise SystemExit("a request does not fit into the socket's buffer: send shorter prompts")

    def receive(self, data: bytes, stream: bool) -> tuple[bytes, int] | None:
        """Bytes of the answer; gives its body, and in how many chunks it came, once that is whole."""
        self.parts.append(data)
        if self.head is None:
            self.head = parse_head(b"".join(self.parts))
            if self.head is None:
                return None
        if stream and not self.ttft and CONTENT.search(b"".join(self.parts)):
            self.ttft = time.perf_counter() - self.began
        if self.head.chunked and not self._may_end_body(data):
            return None
        return parse_body(b"".join(self.parts), self.head)

    def _may_end_body(self, data: bytes) -> bool:
        return data.endswith(LAST_CHUNK) or (len(data) < len(LAST_CHUNK) and b"".join(self.parts).endswith(LAST_CHUNK))


class LoadClient:
    """One process' share of a load."""

    def __init__(self, load: HttpWorkload) -> None:
        self._load = load
        place = urlsplit(load.url)
        self._address = (place.hostname or "127.0.0.1", place.port or 80)
        self._requests = [build_request(load, body) for body in load.bodies]
        self._poll = select.epoll()
        self._busy: dict[int, _LoadConnection] = {}
        self._begun = 0
        self._deadline = 0.0
        self._result = LoadResult()

    def run(self) -> LoadResult:
        """All connections are open before the clock starts."""
        connections = [_LoadConnection(self._address) for _ in range(self._load.connections)]
        started = time.perf_counter()
        self._deadline = started + self._load.seconds if self._load.seconds else float("inf")
        for connection in connections:
            self._send_next(connection, new=True)
        while self._busy:
            events = self._poll.poll(self._load.patience_s)
            for number, _ in events:
                self._read(number)
            if not events:
                self._abandon_all()
        self._result.seconds = time.perf_counter() - started
        self._poll.close()
        return self._result

    def _should_send(self) -> bool:
        wanted = self._load.requests
        return (not wanted or self._begun < wanted) and time.perf_counter() < self._deadline

    def _send_next(self, connection: _LoadConnection, new: bool) -> None:
        """Send the next request, or let the connection go."""
        number = connection.socket.fileno()
        if not self._should_send():
            if not new:
                self._drop(number)
            connection.socket.close()
            return
        if new:
            self._register(connection)
        request = self._requests[self._begun % len(self._requests)]
        self._begun += 1
        connection.send(request)

    def _drop(self, number: int) -> None:
        self._poll.unregister(number)
        del self._busy[number]

    def _read(self, number: int) -> None:
        connection = self._busy[number]
        try:
            data = connection.socket.recv(_READ)
        except BlockingIOError:
            return None
        except OSError as problem:
            return self._handle_close(number, f"{problem}")
        if not data:
            return self._handle_close(number, f"closed after {sum(map(len, connection.parts))} bytes of an answer")
        try:
            found = connection.receive(data, self._load.stream)
        except ValueError as problem:
            return self._reconnect(number, f"not HTTP: {problem}")
        if found is None:
            return None
        assert connection.head is not None
        connection.answered += 1
        self._record_response(connection, connection.head.status, *found)
        if connection.head.closes:
            return self._reconnect(number, None)
        return self._send_next(connection, new=False)

    def _handle_close(self, number: int, why: str) -> None:
        """The server closed the connection. Before any byte, on one that had served, every client asks again."""
        connection = self._busy[number]
        if connection.parts or not connection.answered:
            return self._reconnect(number, why)
        self._drop(number)
        connection.socket.close()
        try:
            again = _LoadConnection(self._address)
        except OSError as problem:
            return self._record_loss(f"no connection: {problem}")
        self._result.reconnects += 1
        self._register(again)
        return again.send(connection.request, connection.began)

    def _register(self, connection: _LoadConnection) -> None:
        number = connection.socket.fileno()
        self._poll.register(number, select.EPOLLIN)
        self._busy[number] = connection

    def _reconnect(self, number: int, lost: str | None) -> None:
        """A connection that ended is followed by a new one."""
        connection = self._busy[number]
        self._drop(number)
        connection.socket.close()
        if lost is not None:
            self._record_loss(lost)
        if self._should_send():
            try:
                self._send_next(_LoadConnection(self._address), new=True)
            except OSError as problem:
                self._record_loss(f"no connection: {problem}")

    def _record_response(self, connection: _LoadConnection, status: int, body: bytes, chunks: int) -> None:
        load, result = self._load, self._result
        if load.stream:
            made, wrong = check_stream(status, body, load.tokens, load.by_usage, load.ends_with_done)
        else:
            made, wrong = check_whole(status, body, load.tokens)
        if wrong is not None:
            return self._record_loss(wrong)
        result.requests += 1
        result.tokens += made
        result.latencies_s.append(time.perf_counter() - connection.began)
        if load.stream:
            result.chunks += chunks
            result.ttfts_s.append(connection.ttft)
        return None

    def _record_loss(self, reason: str) -> None:
        self._result.lost += 1
        if len(self._result.reasons) < _REASONS_KEPT:
            self._result.reasons.append(reason)

    def _abandon_all(self) -> None:
        for number, connection in list(self._busy.items()):
            self._record_loss(f"nothing came for {self._load.patience_s:.0f} s")
            self._drop(number)
            connection.socket.close()


def run_workload(load: HttpWorkload, cores: Sequence[int] = ()) -> LoadResult:
    """Run a load in processes of its own, one pinned to each core; connections and requests are shared out."""
    places: list[int | None] = [*cores] or [None]
    processes = []
    for place, core in enumerate(places):
        share = asdict(load)
        for name in ("connections", "requests"):
            share[name] = share[name] // len(places) + (place < share[name] % len(places))
        if not share["connections"] or (load.requests and not share["requests"]):
            continue
        command = [sys.executable, "-m", "bench.server.loadgen", "--load", json.dumps({"core": core, "load": share})]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT))
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("the load client failed")
    return merge_results([LoadResult(**json.loads(output)) for output in outputs])


def build_chat_body(model: str, tokens: int, stream: bool, prompt: str = "Say hi.", **more: Any) -> dict[str, Any]:
    """The body of a chat request."""
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "max_tokens": tokens, "stream": stream, **more}


def _run_child(text: str) -> int:
    """The side of `run` that does the work: a load comes in, a result goes out."""
    told = json.loads(text)
    if told["core"] is not None:
        os.sched_setaffinity(0, {told["core"]})
    print(json.dumps(asdict(LoadClient(HttpWorkload(**told["load"])).run())))
    return 0


def _main(arguments: Sequence[str]) -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--url", required=True)
    options.add_argument("--model", default="bench")
    options.add_argument("--connections", type=int, default=32)
    options.add_argument("--seconds", type=float, default=3.0)
    options.add_argument("--tokens", type=int, default=8)
    options.add_argument("--stream", action="store_true")
    options.add_argument("--key", help="API key")
    options.add_argument("--cores", type=int, nargs="*", default=[])
    given = options.parse_args(arguments)
    headers = {"Authorization": f"Bearer {given.key}"} if given.key else {}
    load = HttpWorkload(
        url=given.url,
        bodies=[build_chat_body(given.model, given.tokens, given.stream)],
        connections=given.connections,
        seconds=given.seconds,
        stream=given.stream,
        tokens=given.tokens,
        headers=headers,
    )
    result = run_workload(load, given.cores)
    print(f"{result.requests_per_s:,.0f} requests/s, {result.tokens_per_s:,.0f} tokens/s, {result.lost} lost")
    if result.chunks:
        print(f"{result.tokens / result.chunks:.1f} tokens in a chunk")
    for name, times in (("latency", result.latencies_s), ("TTFT", result.ttfts_s)):
        if times:
            ranks = ", ".join(f"p{percent} {percentile(times, percent) * 1000:.3f}" for percent in (50, 95, 99))
            print(f"{name} ms: {ranks}")
    print("\n".join(result.reasons))
    return 1 if result.lost else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        sys.exit(_run_child(sys.argv[2]))
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(_main(sys.argv[1:]))
