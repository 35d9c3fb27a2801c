"""The loop of one process: requests go out at their times, and what comes in is stamped and put by.

Nothing is taken apart while the window lasts: an answer is read when all have ended, unless more bytes wait than fit into
memory. The loop never sleeps past the next send by more than the kernel's timer does: `epoll` counts in milliseconds, so
the wait is a `select` on the poll itself, which counts in microseconds.
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

from enginebay.lab.client.answers import Answer, read_answer
from enginebay.lab.client.connection import READ, Connection, connected, open_connection
from enginebay.lab.client.framing import Garbage, Head
from enginebay.lab.client.order import Order, Outcome, Progress

_LONGEST_WAIT_S = 0.25  # and between two lines of progress
_STALL_LOOKS = 20  # at every connection, in the time after which one has stalled: each look holds up all of them
_MEMORY_BYTES = 1 << 29  # of answers that were not read yet
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


@dataclass(slots=True)
class _Ended:
    """An answer that waits to be read."""

    shot: int
    sent_s: float
    end_s: float
    head: Head | None = None
    parts: list[bytes] = field(default_factory=list)
    stamps: list[float] = field(default_factory=list)
    error: str | None = None
    detail: str = ""


class Shooter:
    """Carries out one order. Times in it are seconds after `zero`, a moment of the monotonic clock."""

    def __init__(self, order: Order, say: Callable[[Progress], None] = lambda progress: None) -> None:
        self._order = order
        self._say = say
        self._next = 0  # place of the next request in the order
        self._zero = 0.0
        self._poll = select.epoll()
        self._open: dict[int, Connection] = {}
        self._idle: list[Connection] = []  # the last used first: those that wait longest may be closed by the server
        self._ended: deque[_Ended] = deque()
        self._outcomes: list[Outcome] = []
        self._waiting_bytes = 0
        self._progress = Progress()
        self._said_s = 0.0
        self._looked_s = 0.0
        self._stopped = False
        found = socket.getaddrinfo(order.host, order.port, type=socket.SOCK_STREAM)[0]
        self._address: tuple[socket.AddressFamily, Any] = (found[0], found[4])

    def stop(self) -> None:
        """Send nothing more; what runs is waited for."""
        self._stopped = True

    def connect(self) -> None:
        """Open the connections that the window begins with. Raises `OSError`."""
        for _ in range(min(self._order.connections, len(self._order.shots))):
            self._add()
        deadline = monotonic() + self._order.timeout_s
        while any(one.connecting for one in self._open.values()) and monotonic() < deadline:
            for number, _ in self._poll.poll(1.0):
                self._finish_connecting(self._open[number])
        if any(one.connecting for one in self._open.values()):
            raise TimeoutError("the server takes no connections")
        self._idle = list(self._open.values())

    def run(self, zero: float) -> list[Outcome]:
        """Send everything and wait for all answers."""
        self._zero = self._said_s = zero
        self._sleep_until(zero)
        used_s = thread_time()
        while self._send_due() or self._running():
            self._wait()
            self._look_after()
        self._progress.core_share = (thread_time() - used_s) / max(monotonic() - zero, 1e-6)
        for connection in list(self._open.values()):
            self._drop(connection)
        self._poll.close()
        while self._ended:
            self._read_one()
        self._tell(monotonic(), over=True)
        return self._outcomes

    # -- sending

    def _send_due(self) -> bool:
        """Send what is due. True: there is more to come."""
        shots = self._order.shots
        now = monotonic() - self._zero
        if self._stopped or (self._order.stop_sending_s is not None and now >= self._order.stop_sending_s):
            return False
        while self._next < len(shots):
            at_s = shots[self._next].at_s
            if self._running() >= self._order.connections if at_s is None else at_s > now:
                return True
            self._send(self._next)
            self._next += 1
            now = monotonic() - self._zero
        return False

    def _send(self, shot: int, sent_s: float | None = None) -> None:
        """Send on a connection that is free, or on a new one."""
        if sent_s is None:
            self._progress.sent += 1
        began = monotonic() if sent_s is None else sent_s
        try:
            connection = self._idle.pop() if self._idle and sent_s is None else self._add()
        except OSError as problem:
            self._put_by(_Ended(shot, began, monotonic(), error="connect", detail=str(problem)))
            return
        try:
            connection.begin(shot, self._order.shots[shot].data, sent_s)
        except OSError as problem:
            self._broken(connection, str(problem))
            return
        if connection.unsent and not connection.connecting:
            self._poll.modify(connection.socket.fileno(), _IN | _OUT)

    def _add(self) -> Connection:
        connection = open_connection(self._address, self._order.host if self._order.tls else None)
        self._open[connection.socket.fileno()] = connection
        self._poll.register(connection.socket.fileno(), _OUT)
        return connection

    def _drop(self, connection: Connection) -> None:
        number = connection.socket.fileno()
        self._poll.unregister(number)
        del self._open[number]
        connection.socket.close()

    # -- waiting

    def _running(self) -> int:
        return self._progress.sent - self._progress.ended

    def _wait(self) -> None:
        """Take what has come; when nothing has, wait for it, or for the next send."""
        events = self._poll.poll(0)
        if not events:
            wait_s = self._pause_s()
            if wait_s > 0:
                select.select([self._poll], [], [], wait_s)
            events = self._poll.poll(0)
        for number, what in events:
            connection = self._open.get(number)
            if connection is None:
                continue
            if connection.connecting:
                self._opened(connection)
            elif what & ~_OUT:
                self._readable(connection)
            elif connection.busy:
                self._writable(connection)

    def _pause_s(self) -> float:
        if self._next < len(self._order.shots) and not self._stopped:
            at_s = self._order.shots[self._next].at_s
            if at_s is not None:
                return min(_LONGEST_WAIT_S, self._zero + at_s - monotonic())
        return _LONGEST_WAIT_S

    def _sleep_until(self, moment: float) -> None:
        while (left := moment - monotonic()) > 0:
            select.select([], [], [], left)

    # -- connections

    def _finish_connecting(self, connection: Connection) -> bool:
        if not connected(connection):
            self._poll.modify(connection.socket.fileno(), _IN)  # the handshake waits for the server's word
            return False
        self._poll.modify(connection.socket.fileno(), _IN)
        return True

    def _opened(self, connection: Connection) -> None:
        try:
            if self._finish_connecting(connection) and connection.busy:
                self._writable(connection)
        except OSError as problem:
            self._fail(connection, "connect", str(problem))

    def _writable(self, connection: Connection) -> None:
        try:
            connection.push()
        except OSError as problem:
            self._broken(connection, str(problem))
            return
        self._poll.modify(connection.socket.fileno(), _IN | _OUT if connection.unsent else _IN)

    def _readable(self, connection: Connection) -> None:
        while True:
            try:
                data = connection.socket.recv(READ)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as problem:
                self._broken(connection, str(problem))
                return
            now = monotonic()
            if not data:
                self._broken(connection, "the server closed the connection")
                return
            if not connection.busy:  # nobody asked
                self._drop_idle(connection)
                return
            self._progress.events += data.count(b"\n\n")
            try:
                whole = connection.take(data, now)
            except Garbage as problem:
                self._fail(connection, "garbage", str(problem))
                return
            if whole:
                self._answered(connection, now)
                return
            if not self._order.tls:  # a plain socket has given all it had; the rest wakes the poll again
                return

    def _answered(self, connection: Connection, now: float) -> None:
        assert connection.head is not None
        self._put_by(_of(connection, now))
        connection.end()
        if connection.head.closes:
            self._drop(connection)
        else:
            self._idle.append(connection)

    def _broken(self, connection: Connection, why: str) -> None:
        """The connection ended. Before any byte, on one that had served, every client asks again on a new one."""
        if not connection.busy:
            self._drop_idle(connection)
        elif not connection.parts and connection.reused:
            shot, sent_s = connection.shot, connection.sent_s
            self._drop(connection)
            self._send(shot, sent_s)
        elif connection.head is not None and connection.head.until_closed:
            self._put_by(_of(connection, monotonic()))
            self._drop(connection)
        else:
            self._fail(connection, "closed", why)

    def _fail(self, connection: Connection, error: str, detail: str) -> None:
        self._put_by(_Ended(connection.shot, connection.sent_s, monotonic(), error=error, detail=detail))
        self._drop(connection)

    def _drop_idle(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        self._drop(connection)

    # -- what has ended

    def _put_by(self, ended: _Ended) -> None:
        self._progress.ended += 1
        if ended.error is not None or (ended.head is not None and ended.head.status != 200):
            self._progress.failed += 1  # how soon a server refuses is no latency
        else:
            self._progress.ends.append((self._index(ended), ended.sent_s - self._zero, ended.end_s - self._zero))
        self._waiting_bytes += sum(map(len, ended.parts))
        self._ended.append(ended)
        while self._waiting_bytes > _MEMORY_BYTES:
            self._read_one()

    def _index(self, ended: _Ended) -> int:
        return self._order.shots[ended.shot].index

    def _read_one(self) -> None:
        """Take the oldest answer apart."""
        ended = self._ended.popleft()
        self._waiting_bytes -= sum(map(len, ended.parts))
        if ended.error is not None:
            answer = Answer(error=ended.error, detail=ended.detail)
        else:
            answer = read_answer(ended.head, ended.parts, ended.stamps)
        at_s = self._order.shots[ended.shot].at_s
        sent_s = ended.sent_s - self._zero
        self._outcomes.append(
            Outcome(
                index=self._index(ended),
                intended_s=sent_s if at_s is None else at_s,
                sent_s=sent_s,
                end_s=ended.end_s - self._zero,
                status=answer.status,
                error=answer.error,
                detail=answer.detail,
                arrivals=[stamp - self._zero for stamp in answer.arrivals],
                text=answer.text,
                finish_reason=answer.finish_reason,
                input_tokens=answer.input_tokens,
                output_tokens=answer.output_tokens,
                cached_tokens=answer.cached_tokens,
                queue_s=answer.queue_s,
            )
        )

    # -- now and then

    def _look_after(self) -> None:
        now = monotonic()
        if now - self._said_s < _LONGEST_WAIT_S:
            return
        self._tell(now)
        if now - self._looked_s < self._order.timeout_s / _STALL_LOOKS:
            return
        self._looked_s = now
        for connection in list(self._open.values()):
            if connection.busy and now - connection.last_s > self._order.timeout_s:
                self._fail(connection, "stalled", f"nothing came for {self._order.timeout_s:g} s")

    def _tell(self, now: float, over: bool = False) -> None:
        self._progress.over = over
        self._say(self._progress)
        self._said_s = now
        self._progress.ends = []


def _of(connection: Connection, now: float) -> _Ended:
    return _Ended(connection.shot, connection.sent_s, now, connection.head, connection.parts, connection.stamps)
