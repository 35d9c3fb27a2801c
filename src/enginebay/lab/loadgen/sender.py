"""The event loop of one sender process: sends requests on schedule, and timestamps and stores what arrives.

Responses are parsed after the window, unless too many bytes wait in memory. The loop oversleeps the next send by no more
than the kernel's timer: `epoll` waits in milliseconds, so the loop waits with `select` on the epoll descriptor, which
waits in microseconds.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, thread_time
from typing import Any

from enginebay.lab.loadgen.client_connection import READ_BYTES, ClientConnection, finish_connecting, open_connection
from enginebay.lab.loadgen.http_framing import MalformedHttp, ResponseHead
from enginebay.lab.loadgen.response_parser import ParsedResponse, parse_response
from enginebay.lab.loadgen.sender_task import RequestOutcome, SenderProgress, SenderTask

_MAX_WAIT_S = 0.25  # also between two progress reports
_STALL_CHECKS = 20  # of all connections per stall timeout; each check delays the loop
_MAX_UNREAD_BYTES = 1 << 29  # of responses not parsed yet
_READABLE, _WRITABLE = select.EPOLLIN, select.EPOLLOUT


@dataclass(slots=True)
class _EndedRequest:
    """A finished request whose response is not parsed yet."""

    position: int
    sent_s: float
    end_s: float
    head: ResponseHead | None = None
    parts: list[bytes] = field(default_factory=list)
    stamps: list[float] = field(default_factory=list)
    error: str | None = None
    detail: str = ""


class RequestSender:
    """Sends one task. Its times are seconds after `zero` on the monotonic clock."""

    def __init__(self, task: SenderTask, on_progress: Callable[[SenderProgress], None] = lambda progress: None) -> None:
        self._task = task
        self._on_progress = on_progress
        self._next_position = 0  # index of the next request in the task
        self._zero = 0.0
        self._poll = select.epoll()
        self._open: dict[int, ClientConnection] = {}
        self._idle: list[ClientConnection] = []  # a stack: the server may close those idle for long
        self._ended: deque[_EndedRequest] = deque()
        self._outcomes: list[RequestOutcome] = []
        self._unread_bytes = 0
        self._progress = SenderProgress()
        self._reported_s = 0.0
        self._stalls_checked_s = 0.0
        self._received_s = 0.0  # the last byte of any response
        self._stopped = False
        address = socket.getaddrinfo(task.host, task.port, type=socket.SOCK_STREAM)[0]
        self._address: tuple[socket.AddressFamily, Any] = (address[0], address[4])

    def stop(self) -> None:
        """Send no more requests; those in flight are awaited."""
        self._stopped = True

    def connect(self) -> None:
        """Open the initial connections. Raise `OSError`."""
        for _ in range(min(self._task.connections, len(self._task.requests))):
            self._open_connection()
        deadline = monotonic() + self._task.timeout_s
        while any(connection.connecting for connection in self._open.values()) and monotonic() < deadline:
            for number, _ in self._poll.poll(1.0):
                self._finish_connecting(self._open[number])
        if any(connection.connecting for connection in self._open.values()):
            raise TimeoutError("timed out connecting to the server")
        self._idle = list(self._open.values())

    def run(self, zero: float) -> list[RequestOutcome]:
        """Send all requests and wait for their responses."""
        self._zero = self._reported_s = zero
        self._sleep_until(zero)
        used_s = thread_time()
        while self._send_due() or self._count_running():
            self._wait_for_events()
            self._check_periodically()
        self._progress.core_share = (thread_time() - used_s) / max(monotonic() - zero, 1e-6)
        for connection in list(self._open.values()):
            self._close_connection(connection)
        self._poll.close()
        while self._ended:
            self._parse_oldest()
        self._report_progress(monotonic(), finished=True)
        return self._outcomes

    # -- sending

    def _send_due(self) -> bool:
        """Send what is due. Return whether more will be."""
        requests = self._task.requests
        now = monotonic() - self._zero
        if self._stopped or (self._task.stop_sending_s is not None and now >= self._task.stop_sending_s):
            return False
        while self._next_position < len(requests):
            at_s = requests[self._next_position].at_s
            if self._count_running() >= self._task.connections if at_s is None else at_s > now:
                return True
            self._send(self._next_position)
            self._next_position += 1
            now = monotonic() - self._zero
        return False

    def _send(self, position: int, sent_s: float | None = None) -> None:
        """Send on an idle connection, or on a new one."""
        if sent_s is None:
            self._progress.sent += 1
        began_s = monotonic() if sent_s is None else sent_s
        try:
            connection = self._idle.pop() if self._idle and sent_s is None else self._open_connection()
        except OSError as error:
            self._queue_ended(_EndedRequest(position, began_s, monotonic(), error="connect", detail=str(error)))
            return
        try:
            connection.begin(position, self._task.requests[position].data, sent_s)
        except OSError as error:
            self._handle_broken(connection, str(error))
            return
        if connection.unsent and not connection.connecting:
            self._poll.modify(connection.socket.fileno(), _READABLE | _WRITABLE)

    def _open_connection(self) -> ClientConnection:
        connection = open_connection(self._address, self._task.host if self._task.tls else None)
        self._open[connection.socket.fileno()] = connection
        self._poll.register(connection.socket.fileno(), _WRITABLE)
        return connection

    def _close_connection(self, connection: ClientConnection) -> None:
        number = connection.socket.fileno()
        self._poll.unregister(number)
        del self._open[number]
        connection.socket.close()

    # -- waiting

    def _count_running(self) -> int:
        return self._progress.sent - self._progress.ended

    def _wait_for_events(self) -> None:
        """Handle ready sockets; if there are none, wait for one or for the next send."""
        events = self._poll.poll(0)
        if not events:
            wait_s = self._next_wait_s()
            if wait_s > 0:
                select.select([self._poll], [], [], wait_s)
            events = self._poll.poll(0)
        for number, mask in events:
            connection = self._open.get(number)
            if connection is None:
                continue
            if connection.connecting:
                self._handle_opened(connection)
            elif mask & ~_WRITABLE:
                self._handle_readable(connection)
            elif connection.is_busy:
                self._handle_writable(connection)

    def _next_wait_s(self) -> float:
        if self._next_position < len(self._task.requests) and not self._stopped:
            at_s = self._task.requests[self._next_position].at_s
            if at_s is not None:
                return min(_MAX_WAIT_S, self._zero + at_s - monotonic())
        return _MAX_WAIT_S

    def _sleep_until(self, moment: float) -> None:
        while (left := moment - monotonic()) > 0:
            select.select([], [], [], left)

    # -- connections

    def _finish_connecting(self, connection: ClientConnection) -> bool:
        if not finish_connecting(connection):
            self._poll.modify(connection.socket.fileno(), _READABLE)  # the handshake waits for the server
            return False
        self._poll.modify(connection.socket.fileno(), _READABLE)
        return True

    def _handle_opened(self, connection: ClientConnection) -> None:
        try:
            if self._finish_connecting(connection) and connection.is_busy:
                self._handle_writable(connection)
        except OSError as error:
            self._fail_request(connection, "connect", str(error))

    def _handle_writable(self, connection: ClientConnection) -> None:
        try:
            connection.flush()
        except OSError as error:
            self._handle_broken(connection, str(error))
            return
        self._poll.modify(connection.socket.fileno(), _READABLE | _WRITABLE if connection.unsent else _READABLE)

    def _handle_readable(self, connection: ClientConnection) -> None:
        while True:
            try:
                data = connection.socket.recv(READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                self._handle_broken(connection, str(error))
                return
            now = self._received_s = monotonic()
            if not data:
                self._handle_broken(connection, "the server closed the connection")
                return
            if not connection.is_busy:  # unsolicited data
                self._close_idle(connection)
                return
            self._progress.events += data.count(b"\n\n")
            try:
                is_complete = connection.receive(data, now)
            except MalformedHttp as error:
                self._fail_request(connection, "garbage", str(error))
                return
            if is_complete:
                self._handle_complete(connection, now)
                return
            if not self._task.tls:  # a plain socket is drained; new data wakes the poll
                return

    def _handle_complete(self, connection: ClientConnection, now: float) -> None:
        assert connection.head is not None
        self._queue_ended(_to_ended(connection, now))
        connection.release()
        if connection.head.closes:
            self._close_connection(connection)
        else:
            self._idle.append(connection)

    def _handle_broken(self, connection: ClientConnection, reason: str) -> None:
        """Handle a closed connection. If a reused one closed before any byte, retry on a new one, as every client does."""
        if not connection.is_busy:
            self._close_idle(connection)
        elif not connection.parts and connection.reused:
            position, sent_s = connection.request_position, connection.sent_s
            self._close_connection(connection)
            self._send(position, sent_s)
        elif connection.head is not None and connection.head.ends_with_connection:
            self._queue_ended(_to_ended(connection, monotonic()))
            self._close_connection(connection)
        else:
            self._fail_request(connection, "closed", reason)

    def _fail_request(self, connection: ClientConnection, error: str, detail: str) -> None:
        self._queue_ended(
            _EndedRequest(connection.request_position, connection.sent_s, monotonic(), error=error, detail=detail)
        )
        self._close_connection(connection)

    def _close_idle(self, connection: ClientConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        self._close_connection(connection)

    # -- finished requests

    def _queue_ended(self, ended: _EndedRequest) -> None:
        self._progress.ended += 1
        if ended.error is not None or (ended.head is not None and ended.head.status != 200):
            self._progress.failed += 1  # the time to a rejection is not a latency
        else:
            self._progress.ends.append(
                (self._workload_index(ended), ended.sent_s - self._zero, ended.end_s - self._zero)
            )
        self._unread_bytes += sum(map(len, ended.parts))
        self._ended.append(ended)
        while self._unread_bytes > _MAX_UNREAD_BYTES:
            self._parse_oldest()

    def _workload_index(self, ended: _EndedRequest) -> int:
        return self._task.requests[ended.position].index

    def _parse_oldest(self) -> None:
        """Parse the oldest response."""
        ended = self._ended.popleft()
        self._unread_bytes -= sum(map(len, ended.parts))
        if ended.error is not None:
            response = ParsedResponse(error=ended.error, detail=ended.detail)
        else:
            response = parse_response(ended.head, ended.parts, ended.stamps)
        at_s = self._task.requests[ended.position].at_s
        sent_s = ended.sent_s - self._zero
        self._outcomes.append(
            RequestOutcome(
                index=self._workload_index(ended),
                intended_s=sent_s if at_s is None else at_s,
                sent_s=sent_s,
                end_s=ended.end_s - self._zero,
                status=response.status,
                error=response.error,
                detail=response.detail,
                arrivals=[stamp - self._zero for stamp in response.arrivals],
                text=response.text,
                finish_reason=response.finish_reason,
                input_tokens=response.input_tokens,
                output_tokens=response.output_tokens,
                cached_tokens=response.cached_tokens,
                queue_s=response.queue_s,
            )
        )

    # -- periodic checks

    def _check_periodically(self) -> None:
        now = monotonic()
        if now - self._reported_s < _MAX_WAIT_S:
            return
        self._report_progress(now)
        if now - self._stalls_checked_s < self._task.timeout_s / _STALL_CHECKS:
            return
        self._stalls_checked_s = now
        for connection in list(self._open.values()):
            if connection.is_busy and now - self._last_sign_s(connection) > self._task.timeout_s:
                self._fail_request(connection, "stalled", _format_stall(self._task.timeout_s))

    def _last_sign_s(self, connection: ClientConnection) -> float:
        """Return when the request last moved. While it queues, the others' responses show that the server is alive."""
        waits_for_others = self._task.queues and not connection.parts
        return max(connection.last_s, self._received_s) if waits_for_others else connection.last_s

    def _report_progress(self, now: float, finished: bool = False) -> None:
        self._progress.finished = finished
        self._on_progress(self._progress)
        self._reported_s = now
        self._progress.ends = []


def _format_stall(timeout_s: float) -> str:
    return f"no data for {timeout_s:g} s; raise limits.stall_timeout_s if the server is only slow"


def _to_ended(connection: ClientConnection, now: float) -> _EndedRequest:
    return _EndedRequest(
        connection.request_position, connection.sent_s, now, connection.head, connection.parts, connection.stamps
    )
