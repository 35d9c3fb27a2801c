"""The loop of a process, against servers that behave and servers that do not."""

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

Manner = Callable[[socket.socket, int], bool]  # what to do with the n-th request; false: hang up


@contextmanager
def server(manner: Manner) -> Iterator[int]:
    """One thread for each connection; requests are counted over all."""
    listener = socket.create_server(("127.0.0.1", 0))
    count = iter(range(10_000))
    threads: list[threading.Thread] = []

    def talk(sock: socket.socket) -> None:
        with sock:
            try:
                while _one_request(sock) and manner(sock, next(count)):
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


def _one_request(sock: socket.socket) -> bool:
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


def well(sock: socket.socket, number: int) -> bool:
    sock.sendall(b"".join(build_stream_writes(4)))
    return True


def shoot(
    port: int, count: int = 3, times: list[float] | None = None, connections: int = 1, timeout_s: float = 30.0
) -> list[RequestOutcome]:
    target = TargetServer(f"http://127.0.0.1:{port}", "m", timeout_s=timeout_s)
    requests = [Request("hello", None, 4)] * count
    order = split_into_tasks(target, requests, times, connections, 1)[0]
    shooter = RequestSender(order)
    shooter.connect()
    return sorted(shooter.run(monotonic()), key=lambda outcome: outcome.index)


def test_a_closed_loop_sends_the_next_when_the_last_is_whole() -> None:
    running: list[int] = []
    most: list[int] = []
    both = threading.Barrier(2, timeout=30)

    def slowly(sock: socket.socket, number: int) -> bool:
        running.append(number)
        most.append(len(running))
        both.wait()
        running.remove(number)
        return well(sock, number)

    with server(slowly) as port:
        outcomes = shoot(port, count=8, connections=2)
    assert [outcome.error for outcome in outcomes] == [None] * 8
    assert [outcome.output_tokens for outcome in outcomes] == [4] * 8
    assert max(most) == 2
    assert all(outcome.intended_s == outcome.sent_s for outcome in outcomes)


def test_how_soon_a_server_refuses_is_no_latency() -> None:
    def every_second(sock: socket.socket, number: int) -> bool:
        if number % 2:
            sock.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
            return True
        return well(sock, number)

    ends, failed = list[int](), list[int]()

    def say(progress: SenderProgress) -> None:
        ends.extend(index for index, _, _ in progress.ends)
        failed.append(progress.failed)

    with server(every_second) as port:
        target = TargetServer(f"http://127.0.0.1:{port}", "m", timeout_s=30.0)
        shooter = RequestSender(split_into_tasks(target, [Request("hello", None, 4)] * 4, None, 1, 1)[0], say)
        shooter.connect()
        shooter.run(monotonic())
    assert ends == [0, 2] and failed[-1] == 2


def test_an_open_loop_does_not_wait_for_answers() -> None:
    """Six requests 20 ms apart to a server that answers none before it has all of them."""
    every = threading.Barrier(6, timeout=30)

    def late(sock: socket.socket, number: int) -> bool:
        every.wait()
        return well(sock, number)

    times = [0.02 * number for number in range(6)]
    with server(late) as port:
        outcomes = shoot(port, count=6, times=times, connections=1)
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
    ("manner", "error"),
    [(_garbage, "garbage"), (_cut, "closed"), (_hangs_up, "closed"), (_stalls, "stalled"), (_busy, "status")],
)
def test_a_server_that_misbehaves_is_an_error_and_not_tokens(manner: Manner, error: str) -> None:
    with server(manner) as port:
        outcomes = shoot(port, count=3, connections=1, timeout_s=0.5 if error == "stalled" else 30)
    assert [outcome.error for outcome in outcomes] == [error] * 3
    assert all(outcome.output_tokens is None and not outcome.arrivals for outcome in outcomes)


def test_one_bad_answer_among_good_ones() -> None:
    with server(lambda sock, number: _cut(sock, number) if number == 1 else well(sock, number)) as port:
        outcomes = shoot(port, count=4, connections=1)
    assert [outcome.error for outcome in outcomes] == [None, "closed", None, None]


def test_a_kept_connection_that_was_closed_is_tried_again_on_a_new_one() -> None:
    """A server may close an idle connection at any time; that is no error of the request."""

    def once(sock: socket.socket, number: int) -> bool:
        well(sock, number)
        return False

    with server(once) as port:
        outcomes = shoot(port, count=3, connections=1)
    assert [outcome.error for outcome in outcomes] == [None] * 3


def test_a_server_that_dies_leaves_errors_for_the_rest() -> None:
    with server(well) as port:
        target = TargetServer(f"http://127.0.0.1:{port}", "m", timeout_s=1.0)
        shooter = RequestSender(split_into_tasks(target, [Request("x", None, 4)] * 3, None, 1, 1)[0])
    outcomes = _run_without_server(shooter)
    assert [outcome.error for outcome in outcomes] == ["connect"] * 3


def _run_without_server(shooter: RequestSender) -> list[RequestOutcome]:
    with pytest.raises(OSError):
        shooter.connect()
    return RequestSender(shooter._task).run(monotonic())


def test_sending_stops_when_told_and_what_runs_is_waited_for() -> None:
    with server(well) as port:
        target = TargetServer(f"http://127.0.0.1:{port}", "m")
        order = split_into_tasks(target, [Request("x", None, 4)] * 20_000, None, 1, 1, stop_sending_s=0.3)[0]
        shooter = RequestSender(order)
        shooter.connect()
        outcomes = shooter.run(monotonic())
    assert 0 < len(outcomes) < 20_000
    assert all(outcome.error is None for outcome in outcomes)


def test_a_prompt_larger_than_the_sockets_buffer_is_sent_whole() -> None:
    with server(well) as port:
        target = TargetServer(f"http://127.0.0.1:{port}", "m")
        shooter = RequestSender(split_into_tasks(target, [Request("x" * (8 << 20), None, 4)], None, 1, 1)[0])
        shooter.connect()
        (outcome,) = shooter.run(monotonic())
    assert outcome.error is None, outcome.detail


def test_progress_says_what_was_sent_and_what_has_ended() -> None:
    told: list[tuple[int, int, bool]] = []

    def say(progress: SenderProgress) -> None:
        told.append((progress.sent, progress.ended, progress.finished))

    with server(well) as port:
        target = TargetServer(f"http://127.0.0.1:{port}", "m")
        shooter = RequestSender(split_into_tasks(target, [Request("x", None, 4)] * 3, None, 2, 1)[0], say)
        shooter.connect()
        shooter.run(monotonic())
    assert told[-1] == (3, 3, True)


def test_requests_are_dealt_in_turn_and_connections_shared_out() -> None:
    requests = [Request((1, 2), 2, 4)] * 7
    orders = split_into_tasks(TargetServer("http://h:1", "m"), requests, [float(n) for n in range(7)], 5, 3)
    assert [[shot.index for shot in order.requests] for order in orders] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [order.connections for order in orders] == [2, 2, 1]
    assert isinstance(orders[0], SenderTask) and isinstance(orders[0].requests[0], ScheduledRequest)


def test_a_request_asks_for_a_stream_with_usage_and_exactly_so_many_tokens() -> None:
    raw = encode_request(TargetServer("http://h:1/proxy/v1", "m", body={"temperature": 0}), Request((5, 6), 2, 4))
    assert raw.startswith(b"POST /proxy/v1/completions HTTP/1.1\r\nHost: h:1\r\n")
    for part in (b'"include_usage":true', b'"prompt":[5,6]', b'"max_tokens":4', b'"min_tokens":4', b'"temperature":0'):
        assert part in raw
    assert b"include_timing" not in raw  # others do not know it, and may refuse it
    common = TargetServer("http://h:1", "m", body={"max_tokens": 99, "min_tokens": 9})
    assert b'"max_tokens":4,' in encode_request(common, Request((5, 6), 2, 4))  # its own length, not the common one
    assert b'"max_tokens":99,' in encode_request(common, Request((5, 6), 2))
    ours = encode_request(TargetServer("http://h:1", "m", is_enginebay=True), Request((5, 6), 2, 4))
    assert b'"stream_options":{"include_usage":true,"include_timing":true}' in ours
    chat = encode_request(TargetServer("http://h:1", "m"), Request(({"role": "user", "content": "hi"},)))
    assert chat.startswith(b"POST /v1/chat/completions") and b"max_tokens" not in chat


def test_the_client_says_how_much_of_a_core_it_used() -> None:
    """It waits for a server that takes its time, and waiting costs nothing."""
    last: list[SenderProgress] = []

    def slowly(sock: socket.socket, number: int) -> bool:
        sleep(0.1)
        return well(sock, number)

    with server(slowly) as port:
        shooter = RequestSender(
            split_into_tasks(TargetServer(f"http://127.0.0.1:{port}", "m"), [Request("x", None, 4)] * 5, None, 1, 1)[0],
            last.append,
        )
        shooter.connect()
        shooter.run(monotonic())
    assert last[-1].finished and 0 < last[-1].core_share < 0.5
