"""HTTP load generator on raw sockets and epoll, so that its ceiling is far above what it measures.

    python -m bench.server.loadgen --url http://127.0.0.1:9001 --connections 32 --seconds 3
    python -m bench.server.loadgen --url http://127.0.0.1:9001 --connections 64 --tokens 128 --stream --seconds 3

A closed loop: every connection sends its next request when the last response is complete. A stream's bytes are only collected
while it runs and parsed once it has ended, so packet boundaries do not matter. A response that is not exactly right counts as
lost, with the reason.
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
    """What to send, and how much of it. Passed to child processes as JSON."""

    url: str  # base URL of the server
    bodies: Sequence[Mapping[str, Any]]  # used in turn
    connections: int
    seconds: float = 0.0  # no request starts after that; 0: no time limit
    requests: int = 0  # total; 0: no limit
    stream: bool = False
    tokens: int | None = None  # output tokens that each response must have
    by_usage: bool = False  # count streamed tokens by the server's usage instead of its events
    ends_with_done: bool = True  # a stream must end with `data: [DONE]`
    headers: Mapping[str, str] = field(default_factory=dict)
    path: str = "/v1/chat/completions"
    patience_s: float = 120.0  # without a byte on any connection, all running requests are lost


@dataclass(slots=True)
class LoadResult:
    """The result of a workload. Returned from child processes as JSON."""

    seconds: float = 0.0  # from the first request to the last byte
    requests: int = 0  # answered correctly
    tokens: int = 0
    chunks: int = 0  # HTTP chunks of streamed responses
    lost: int = 0
    reconnects: int = 0  # requests resent because the server had closed their idle connection
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
    """Return the percentile by rank: always one of the values."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]


def merge_results(results: Sequence[LoadResult]) -> LoadResult:
    """Merge the results of processes that ran in parallel."""
    total = LoadResult(seconds=max(result.seconds for result in results))
    for result in results:
        total.requests += result.requests
        total.tokens += result.tokens
        total.chunks += result.chunks
        total.lost += result.lost
        total.reconnects += result.reconnects
        total.reasons += result.reasons
        total.latencies_s += result.latencies_s
        total.ttfts_s += result.ttfts_s
    return total


def build_request(workload: HttpWorkload, body: Mapping[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    lines = [
        f"POST {workload.path} HTTP/1.1",
        f"Host: {urlsplit(workload.url).netloc}",
        "Content-Type: application/json",
    ]
    lines += [f"{name}: {value}" for name, value in workload.headers.items()]
    lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


class _LoadConnection:
    """One connection and its running request."""

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
            raise SystemExit("a request does not fit into the socket buffer: send shorter prompts")

    def receive(self, data: bytes, stream: bool) -> tuple[bytes, int] | None:
        """Add bytes of the response. Return its body and number of chunks once it is complete."""
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
    """One process's share of a workload."""

    def __init__(self, workload: HttpWorkload) -> None:
        self._workload = workload
        url = urlsplit(workload.url)
        self._address = (url.hostname or "127.0.0.1", url.port or 80)
        self._requests = [build_request(workload, body) for body in workload.bodies]
        self._poll = select.epoll()
        self._busy: dict[int, _LoadConnection] = {}
        self._sent = 0
        self._deadline = 0.0
        self._result = LoadResult()

    def run(self) -> LoadResult:
        """Run the workload. All connections open before the clock starts."""
        connections = [_LoadConnection(self._address) for _ in range(self._workload.connections)]
        started = time.perf_counter()
        self._deadline = started + self._workload.seconds if self._workload.seconds else float("inf")
        for connection in connections:
            self._send_next(connection, new=True)
        while self._busy:
            events = self._poll.poll(self._workload.patience_s)
            for number, _ in events:
                self._read(number)
            if not events:
                self._abandon_all()
        self._result.seconds = time.perf_counter() - started
        self._poll.close()
        return self._result

    def _should_send(self) -> bool:
        limit = self._workload.requests
        return (not limit or self._sent < limit) and time.perf_counter() < self._deadline

    def _send_next(self, connection: _LoadConnection, new: bool) -> None:
        """Send the next request, or close the connection."""
        number = connection.socket.fileno()
        if not self._should_send():
            if not new:
                self._drop(number)
            connection.socket.close()
            return
        if new:
            self._register(connection)
        request = self._requests[self._sent % len(self._requests)]
        self._sent += 1
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
        except OSError as error:
            return self._handle_close(number, f"{error}")
        if not data:
            return self._handle_close(number, f"closed after {sum(map(len, connection.parts))} bytes of a response")
        try:
            response = connection.receive(data, self._workload.stream)
        except ValueError as error:
            return self._reconnect(number, f"not HTTP: {error}")
        if response is None:
            return None
        assert connection.head is not None
        connection.answered += 1
        self._record_response(connection, connection.head.status, *response)
        if connection.head.closes:
            return self._reconnect(number, None)
        return self._send_next(connection, new=False)

    def _handle_close(self, number: int, reason: str) -> None:
        """Handle a close by the server. Without any byte on a reused connection, resend the request as every client does."""
        connection = self._busy[number]
        if connection.parts or not connection.answered:
            return self._reconnect(number, reason)
        self._drop(number)
        connection.socket.close()
        try:
            fresh = _LoadConnection(self._address)
        except OSError as error:
            return self._record_loss(f"no connection: {error}")
        self._result.reconnects += 1
        self._register(fresh)
        return fresh.send(connection.request, connection.began)

    def _register(self, connection: _LoadConnection) -> None:
        number = connection.socket.fileno()
        self._poll.register(number, select.EPOLLIN)
        self._busy[number] = connection

    def _reconnect(self, number: int, loss: str | None) -> None:
        """Replace a closed connection."""
        connection = self._busy[number]
        self._drop(number)
        connection.socket.close()
        if loss is not None:
            self._record_loss(loss)
        if self._should_send():
            try:
                self._send_next(_LoadConnection(self._address), new=True)
            except OSError as error:
                self._record_loss(f"no connection: {error}")

    def _record_response(self, connection: _LoadConnection, status: int, body: bytes, chunks: int) -> None:
        workload, result = self._workload, self._result
        if workload.stream:
            tokens, fault = check_stream(status, body, workload.tokens, workload.by_usage, workload.ends_with_done)
        else:
            tokens, fault = check_whole(status, body, workload.tokens)
        if fault is not None:
            return self._record_loss(fault)
        result.requests += 1
        result.tokens += tokens
        result.latencies_s.append(time.perf_counter() - connection.began)
        if workload.stream:
            result.chunks += chunks
            result.ttfts_s.append(connection.ttft)
        return None

    def _record_loss(self, reason: str) -> None:
        self._result.lost += 1
        if len(self._result.reasons) < _REASONS_KEPT:
            self._result.reasons.append(reason)

    def _abandon_all(self) -> None:
        for number, connection in list(self._busy.items()):
            self._record_loss(f"no data for {self._workload.patience_s:.0f} s")
            self._drop(number)
            connection.socket.close()


def run_workload(workload: HttpWorkload, cores: Sequence[int] = ()) -> LoadResult:
    """Run a workload in child processes, one pinned to each core, that share its connections and requests."""
    pins: list[int | None] = [*cores] or [None]
    processes = []
    for index, core in enumerate(pins):
        share = asdict(workload)
        for name in ("connections", "requests"):
            share[name] = share[name] // len(pins) + (index < share[name] % len(pins))
        if not share["connections"] or (workload.requests and not share["requests"]):
            continue
        command = [sys.executable, "-m", "bench.server.loadgen", "--load", json.dumps({"core": core, "load": share})]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT))
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("the load generator failed")
    return merge_results([LoadResult(**json.loads(output)) for output in outputs])


def build_chat_body(model: str, tokens: int, stream: bool, prompt: str = "Say hi.", **more: Any) -> dict[str, Any]:
    """Build the body of a chat request."""
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "max_tokens": tokens, "stream": stream, **more}


def _run_child(text: str) -> int:
    """Run the share of a workload that `run_workload` passes as JSON, and print the result as JSON."""
    task = json.loads(text)
    if task["core"] is not None:
        os.sched_setaffinity(0, {task["core"]})
    print(json.dumps(asdict(LoadClient(HttpWorkload(**task["load"])).run())))
    return 0


def _main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="bench")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--key", help="API key")
    parser.add_argument("--cores", type=int, nargs="*", default=[])
    args = parser.parse_args(arguments)
    headers = {"Authorization": f"Bearer {args.key}"} if args.key else {}
    workload = HttpWorkload(
        url=args.url,
        bodies=[build_chat_body(args.model, args.tokens, args.stream)],
        connections=args.connections,
        seconds=args.seconds,
        stream=args.stream,
        tokens=args.tokens,
        headers=headers,
    )
    result = run_workload(workload, args.cores)
    print(f"{result.requests_per_s:,.0f} requests/s, {result.tokens_per_s:,.0f} tokens/s, {result.lost} lost")
    if result.chunks:
        print(f"{result.tokens / result.chunks:.1f} tokens per chunk")
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
