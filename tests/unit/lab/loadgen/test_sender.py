"""The event loop of a sender, against servers that behave and servers that do not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

import pytest

from enginebay.lab.loadgen.calibration_server import build_stream_writes
from enginebay.lab.loadgen.sender import RequestSender
from enginebay.lab.loadgen.sender_task import (
    RequestOutcome,
    ScheduledRequest,
    SenderProgress,
    SenderTask,
    TargetServer,
    encode_request,
    split_into_tasks,
)
from enginebay.lab.workload.request_records import Request

Handler = Callable[[socket.socket, int], bool]  # handles the n-th request; False: close the connection


@contextmanager
def server(handler: Handler) -> Iterator[int]:
    """Serve with one thread per connection; requests are counted over all connections."""
    listener = socket.create_server(("127.0.0.1", 0))
    count = iter(range(10_000))
    threads: list[threading.Thread] = []

    def talk(sock: socket.socket) -> None:
        with sock:
            try:
                while read_request(sock) and handler(sock, next(count)):
                    pass
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=talk, args=(sock,), daemon=True))
            threads[-1].start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def read_request(sock: socket.socket) -> bool:
    raw = b""
    while b"\r\n\r\n" not in raw:
        data = sock.recv(1 << 16)
        if not data:
            return False
        raw += data
    head, _, body = raw.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(1 << 16)
    return True


def answer_well(sock: socket.socket, number: int) -> bool:
    sock.sendall(b"".join(build_stream_writes(4)))
    return True


def send(
    port: int, count: int = 3, times: list[float] | None = None, connections: int = 1, timeout_s: float = 30.0
) -> list[RequestOutcome]:
    target = TargetServer(f"http://127.0.0.1:{port}", "m", timeout_s=timeout_s)
    requests = [Request("hello", None, 4)] * count
    task = split_into_tasks(target, requests, times, connections, 1)[0]
    sender = RequestSender(task)
    sender.connect()
    return sorted(sender.run(monotonic()), key=lambda outcome: outcome.index)


def test_a_closed_loop_sends_the_next_when_the_last_is_complete() -> None:
    running: list[int] = []
    most: list[int] = []
    both = threading.Barrier(2, timeout=30)

    def slowly(sock: socket.socket, number: int) -> bool:
        running.append(number)
        most.append(len(running))
        both.wait()
        running.remove(number)
        return answer_well(sock, number)

    with server(slowly) as port:
        outcomes = send(port, count=8, connections=2)
    assert [outcome.error for outcome in outcomes] == [None] * 8
    assert [outcome.output_tokens for outcome in outcomes] == [4] * 8
    assert max(most) == 2
    assert all(outcome.intended_s == outcome.sent_s for outcome in outcomes)


def test_the_time_to_a_rejection_is_not_a_latency() -> None:
    def every_second(sock: socket.socket, number: int) -> bool:
        if number % 2:
            sock.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
            return True
        return answer_well(sock, number)

    ends, failed = list[int](), list[int]()

    def on_progress(progress: SenderProgress) -> None:
        ends.extend(index for index, _, _ in progress.ends)
        failed.append(progress.failed)

    with server(every_second) as port:
        target = TargetServer(f"http://127.0.0.1:{port}", "m", timeout_s=30.0)
        sender = RequestSender(split_into_tasks(target, [Request("hello", None, 4)] * 4, None, 1, 1)[0], on_progress)
        sender.connect()
        sender.run(monotonic())
    assert ends == [0, 2] and failed[-1] == 2


def test_an_open_loop_does_not_wait_for_answers() -> None:
    """Six requests 20 ms apart to a server that answers none before it has all of them."""
    every = threading.Barrier(6, timeout=30)

    def late(sock: socket.socket, number: int) -> bool:
        every.wait()
        return answer_well(sock, number)

    times = [0.02 * number for number in range(6)]
    with server(late) as port:
        outcomes = send(port, count=6, times=times, connections=1)
    assert [outcome.error for outcome in outcomes] == [None] * 6
    assert [outcome.intended_s for outcome in outcomes] == times
    assert max(outcome.sent_s for outcome in outcomes) < min(outcome.end_s for outcome in outcomes)
    assert all(outcome.sent_s >= outcome.intended_s for outcome in outcomes)


def _garbage(sock: socket.socket, number: int) -> bool:
    sock.sendall(b"220 mail.example.org ESMTP\r\n\r\n")
    return False


def _cut(sock: socket.socket, number: int) -> bool:
    sock.sendall(b"".join(build_stream_writes(4)[:2]))
    return False


def _hangs_up(sock: socket.socket, number: int) -> bool:
    return False


def _stalls(sock: socket.socket, number: int) -> bool:
    sock.sendall(build_stream_writes(4)[0])
    sleep(30)
    return False


def _busy(sock: socket.socket, number: int) -> bool:
    sock.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
    return True


@pytest.mark.parametrize(
    ("handler", "error"),
    [(_garbage, "garbage"), (_cut, "closed"), (_hangs_up, "closed"), (_stalls, "stalled"), (_busy, "status")],
)
def test_a_server_that_misbehaves_is_an_error_and_not_tokens(handler: Handler, error: str) -> None:
    with server(handler) as port:
        outcomes = send(port, count=3, connections=1, timeout_s=0.5 if error == "stalled" else 30)
    assert [outcome.error for outcome in outcomes] == [error] * 3
    assert all(outcome.output_tokens is None and not outcome.arrivals for outcome in outcomes)


def test_one_bad_answer_among_good_ones() -> None:
    with server(lambda sock, number: _cut(sock, number) if number == 1 else answer_well(sock, number)) as port:
        outcomes = send(port, count=4, connections=1)
    assert [outcome.error for outcome in outcomes] == [None, "closed", None, None]


def test_a_request_on_a_closed_idle_connection_is_retried_on_a_new_one() -> None:
    """A server may close an idle connection at any time; that is not a request error."""

    def once(sock: socket.socket, number: int) -> bool:
        answer_well(sock, number)
        return False

    with server(once) as port:
        outcomes = send(port, count=3, connections=1)
    assert [outcome.error for outcome in outcomes] == [None] * 3


def test_a_server_that_dies_leaves_errors_for_the_rest() -> None:
    with server(answer_well) as port:
        target = TargetServer(f"http://127.0.0.1:{port}", "m", timeout_s=1.0)
        sender = RequestSender(split_into_tasks(target, [Request("x", None, 4)] * 3, None, 1, 1)[0])
    outcomes = _run_without_server(sender)
    assert [outcome.error for outcome in outcomes] == ["connect"] * 3


def _run_without_server(sender: RequestSender) -> list[RequestOutcome]:
    with pytest.raises(OSError):
        sender.connect()
    return RequestSender(sender._task).run(monotonic())


def test_sending_stops_in_time_and_requests_in_flight_complete() -> None:
    with server(answer_well) as port:
        target = TargetServer(f"http://127.0.0.1:{port}", "m")
        task = split_into_tasks(target, [Request("x", None, 4)] * 20_000, None, 1, 1, stop_sending_s=0.3)[0]
        sender = RequestSender(task)
        sender.connect()
        outcomes = sender.run(monotonic())
    assert 0 < len(outcomes) < 20_000
    assert all(outcome.error is None for outcome in outcomes)


def test_a_prompt_larger_than_the_sockets_buffer_is_sent_whole() -> None:
    with server(answer_well) as port:
        target = TargetServer(f"http://127.0.0.1:{port}", "m")
        sender = RequestSender(split_into_tasks(target, [Request("x" * (8 << 20), None, 4)], None, 1, 1)[0])
        sender.connect()
        (outcome,) = sender.run(monotonic())
    assert outcome.error is None, outcome.detail


def test_progress_reports_sent_and_ended_requests() -> None:
    reports: list[tuple[int, int, bool]] = []

    def on_progress(progress: SenderProgress) -> None:
        reports.append((progress.sent, progress.ended, progress.finished))

    with server(answer_well) as port:
        target = TargetServer(f"http://127.0.0.1:{port}", "m")
        sender = RequestSender(split_into_tasks(target, [Request("x", None, 4)] * 3, None, 2, 1)[0], on_progress)
        sender.connect()
        sender.run(monotonic())
    assert reports[-1] == (3, 3, True)


def test_requests_are_dealt_round_robin_and_connections_divided() -> None:
    requests = [Request((1, 2), 2, 4)] * 7
    tasks = split_into_tasks(TargetServer("http://h:1", "m"), requests, [float(n) for n in range(7)], 5, 3)
    assert [[request.index for request in task.requests] for task in tasks] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [task.connections for task in tasks] == [2, 2, 1]
    assert isinstance(tasks[0], SenderTask) and isinstance(tasks[0].requests[0], ScheduledRequest)


def test_a_request_asks_for_a_stream_with_usage_and_exactly_so_many_tokens() -> None:
    raw = encode_request(TargetServer("http://h:1/proxy/v1", "m", body={"temperature": 0}), Request((5, 6), 2, 4))
    assert raw.startswith(b"POST /proxy/v1/completions HTTP/1.1\r\nHost: h:1\r\n")
    for part in (b'"include_usage":true', b'"prompt":[5,6]', b'"max_tokens":4', b'"min_tokens":4', b'"temperature":0'):
        assert part in raw
    assert b"include_timing" not in raw  # other servers may reject it
    common = TargetServer("http://h:1", "m", body={"max_tokens": 99, "min_tokens": 9})
    assert b'"max_tokens":4,' in encode_request(common, Request((5, 6), 2, 4))  # its own length, not the common one
    assert b'"max_tokens":99,' in encode_request(common, Request((5, 6), 2))
    ours = encode_request(TargetServer("http://h:1", "m", is_enginebay=True), Request((5, 6), 2, 4))
    assert b'"stream_options":{"include_usage":true,"include_timing":true}' in ours
    chat = encode_request(TargetServer("http://h:1", "m"), Request(({"role": "user", "content": "hi"},)))
    assert chat.startswith(b"POST /v1/chat/completions") and b"max_tokens" not in chat


def test_the_sender_reports_its_core_share() -> None:
    """Waiting for a slow server costs no CPU time."""
    last: list[SenderProgress] = []

    def slowly(sock: socket.socket, number: int) -> bool:
        sleep(0.1)
        return answer_well(sock, number)

    with server(slowly) as port:
        sender = RequestSender(
            split_into_tasks(TargetServer(f"http://127.0.0.1:{port}", "m"), [Request("x", None, 4)] * 5, None, 1, 1)[0],
            last.append,
        )
        sender.connect()
        sender.run(monotonic())
    assert last[-1].finished and 0 < last[-1].core_share < 0.5


def test_a_stall_names_its_limit() -> None:
    with server(_stalls) as port:
        (outcome,) = send(port, count=1, timeout_s=0.5)
    assert outcome.detail == "no data for 0.5 s; raise limits.stall_timeout_s if the server is only slow"


@pytest.mark.parametrize("queues", [True, False])
def test_a_request_that_queues_is_not_stalled_while_others_are_answered(queues: bool) -> None:
    """One at a time, 0.4 s each, in pieces: the last waits longer than the limit, but the server is never silent for long."""
    turn = threading.Lock()

    def one_at_a_time(sock: socket.socket, number: int) -> bool:
        with turn:
            for data in build_stream_writes(4):
                sleep(0.1)
                sock.sendall(data)
        return True

    with server(one_at_a_time) as port:
        target = TargetServer(f"http://127.0.0.1:{port}", "m", timeout_s=1.2)
        requests = [Request("hello", None, 4)] * 8
        sender = RequestSender(split_into_tasks(target, requests, [0.0] * 8, 8, 1, queues=queues)[0])
        sender.connect()
        errors = [outcome.error for outcome in sender.run(monotonic())]
    assert ("stalled" in errors) is not queues
