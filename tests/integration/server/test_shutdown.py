"""Shutdown by a signal, by a second signal, and after a worker's death: responses drain, and no process is left behind."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import psutil
import pytest

from tests.integration.server.abused_server import CHAT
from tests.integration.server.bay_process import BayProcess, read_command, run_server
from tests.integration.server.fake_requests import BODY, ask, build_config
from tests.integration.server.raw_http import (
    assert_error,
    assert_no_leak,
    build_request,
    connect,
    read_response,
    wait_until,
)


def processes(server: BayProcess) -> list[psutil.Process]:
    """The server's processes, including its descendants."""
    found = psutil.Process(server.process.pid)
    return [found, *found.children(recursive=True)]


def all_gone(found: list[psutil.Process]) -> bool:
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in found)


def worker_of(server: BayProcess) -> psutil.Process:
    [worker] = [one for one in processes(server) if any("bootstrap.py" in part for part in read_command(one))]
    return worker


class Stream:
    """A stream that another thread reads to the end."""

    def __init__(self, server: BayProcess, **fields: Any) -> None:
        self.sock = connect(server.port, timeout_s=60)
        self.sock.sendall(build_request("POST", CHAT, json.dumps({**BODY, "stream": True, **fields}).encode()))
        self._first = self.sock.recv(4096)
        assert self._first.startswith(b"HTTP/1.1 200")
        self.body: bytes | None = None
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        self.body = read_response(self.sock, self._first)[0].body

    def events(self) -> list[str]:
        self._thread.join(60)
        self.sock.close()
        assert self.body is not None, "the stream was cut off"
        return [event.removeprefix("data: ") for event in self.body.decode().split("\n\n") if event]


def gauge(server: BayProcess, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def is_refused(server: BayProcess) -> bool:
    try:
        connect(server.port, timeout_s=2).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_drains_responses(workers: int) -> None:
    config = build_config({"step_s": 0.01}, workers=workers)
    with run_server(config=config) as server:
        started = processes(server)
        idle = connect(server.port)
        idle.sendall(build_request("GET", "/health/live"))
        assert read_response(idle)[0].status == 200
        streams = [Stream(server, max_tokens=200) for _ in range(4)]
        with ThreadPoolExecutor(1) as threads:
            whole = threads.submit(ask, server, max_tokens=200)
            wait_until(
                lambda: whole.done() or gauge(server, "enginebay_requests_running") == 5, 30, "all of them under way"
            )
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: is_refused(server), 30, "the end of new connections")
            assert idle.recv(1) == b""  # one that waits for a next request is not waited for
            idle.close()
            for stream in streams:
                events = stream.events()
                assert events[-1] == "[DONE]" and len(events) == 1 + 200 + 1 + 1
            assert whole.result().status == 200
        assert server.process.wait(60) == 0
        wait_until(lambda: all_gone(started), 30, "the end of all processes")


def test_a_signal_waits_for_unread_responses() -> None:
    """The engine is done, but the client has not read everything: the response is still in progress."""
    with run_server(config=build_config()) as server:
        with connect(server.port, receive_bytes=4096) as sock:
            body = {**BODY, "max_tokens": 1500, "stream": True, "stream_options": {"include_usage": True}}
            sock.sendall(build_request("POST", CHAT, json.dumps(body).encode()))
            first = sock.recv(1000)
            time.sleep(1)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(1)
            answer, _ = read_response(sock, first)
        assert answer.body.endswith(b"data: [DONE]\n\n") and answer.body.count(b"data: ") == 1 + 1500 + 1 + 1 + 1
        assert server.process.wait(60) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_the_drain_times_out(workers: int) -> None:
    """Aborted requests get an error: a stream as its last event, the others as their status."""
    limits: dict[str, object] = {"running": workers, "queue": workers}
    with run_server(
        config=build_config({"step_s": 0.02}, limits, workers=workers, drain_s=1.0, log_level="info")
    ) as server:
        started = processes(server)
        stream = Stream(server, max_tokens=3000)
        asked = []
        if workers == 1:  # this one waits for its turn
            asked = [connect(server.port)]
            asked[0].sendall(build_request("POST", CHAT, json.dumps(BODY).encode()))
            wait_until(lambda: gauge(server, "enginebay_requests_waiting") == 1, 30, "the one that waits")
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        events = stream.events()
        assert json.loads(events[-1])["error"]["code"] == "cancelled" and "[DONE]" not in events
        assert_no_leak(events[-1])
        for sock in asked:
            assert assert_error(read_response(sock)[0], 503)["code"] == "cancelled"
            sock.close()
        assert server.process.wait(60) == 0
        assert 0.9 < time.monotonic() - began < 30  # the stream would go on for 60
        lines = [line for line in server.read_log().splitlines() if " chat " in line]
        assert lines and all('error=cancelled message="the server is stopping"' in line for line in lines), lines
        wait_until(lambda: all_gone(started), 30, "the end of all processes")


@pytest.mark.parametrize(("workers", "second"), [(1, signal.SIGTERM), (2, signal.SIGTERM), (1, signal.SIGINT)])
def test_a_second_signal_exits_at_once(workers: int, second: signal.Signals) -> None:
    with run_server(config=build_config({"step_s": 0.05}, workers=workers), exit_code=130) as server:
        started = processes(server)
        with connect(server.port) as sock:
            sock.sendall(build_request("POST", CHAT, json.dumps({**BODY, "max_tokens": 3000, "stream": True}).encode()))
            sock.recv(1000)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: is_refused(server), 30, "the end of new connections")
            server.process.send_signal(second)
            server.process.wait(20)  # not for the end of the answer, 150 s, nor for that of the wait for it, 30 s
        wait_until(lambda: all_gone(started), 30, "the end of all processes")


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_outlives_a_server_that_was_killed(workers: int) -> None:
    with run_server(config=build_config(workers=workers), exit_code=-signal.SIGKILL) as server:
        started = processes(server)
        assert len(started) > workers
        server.process.kill()
        wait_until(lambda: all_gone(started), 30, "the end of all processes")


def test_a_signal_while_the_model_is_loaded() -> None:
    command = [sys.executable, "-m", "enginebay.cli.main", "serve", "--engine", "fake", "--port", "0"]
    process = subprocess.Popen([*command, "--set", "load_s=60"], stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: psutil.Process(process.pid).children(recursive=True), 20, "the start of a worker")
        started = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0 and "before serving" in said
        wait_until(lambda: all_gone(started), 30, "the end of all processes")
    finally:
        process.kill()
        process.wait()


def test_a_worker_death() -> None:
    """Streams of one sequence continue on the next worker, others get an error; whole responses are complete."""
    with run_server(config=build_config({"step_s": 0.02})) as server:
        assert httpx.get(f"{server.url}/health/ready", timeout=60).status_code == 200
        stream, several = Stream(server, max_tokens=80), Stream(server, max_tokens=3000, n=2)
        with ThreadPoolExecutor(1) as threads:
            whole = threads.submit(ask, server, max_tokens=60)
            time.sleep(0.3)
            worker_of(server).send_signal(signal.SIGKILL)
            assert stream.events()[-1] == "[DONE]"
            events = several.events()
            error = json.loads(events[-1])["error"]
            assert error["code"] == "engine_unavailable" and "[DONE]" not in events
            assert_no_leak(events[-1])
            assert whole.result().status == 200
        assert ask(server).status == 200
        embedding = httpx.post(f"{server.url}/v1/embeddings", json={"model": "toy", "input": "hi"}, timeout=60)
        assert embedding.status_code == 200
        assert httpx.get(f"{server.url}/health/ready", timeout=60).status_code == 200
        metrics = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
        deaths = [line for line in metrics if "worker_deaths_total{" in line]
        assert deaths == ['enginebay_worker_deaths_total{model="toy",engine="fake",cause="crash"} 1']


def test_an_engine_that_hangs_does_not_hang_the_server() -> None:
    limits: dict[str, object] = {"request_timeout_s": 1}
    with run_server(config=build_config({"hang_after_tokens": 5}, limits)) as server:
        for _ in range(2):
            assert_error(ask(server, max_tokens=100), 504)
        assert httpx.get(f"{server.url}/health/live", timeout=60).status_code == 200


def test_an_engine_that_fails_on_a_request() -> None:
    with run_server(config=build_config({"fail_after_tokens": 3})) as server:
        error = assert_error(ask(server, max_tokens=100), 500)
        assert error["code"] == "engine_failed" and "fail_after_tokens" not in error["message"]
        streamed = ask(server, max_tokens=100, stream=True)
        events = [event for event in streamed.body.decode().split("\n\n") if event]
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "engine_failed"
        assert ask(server, max_tokens=2).status == 200


def test_sockets_are_not_inherited() -> None:
    """A worker that holds the listening socket would keep the port open after the server exits."""
    with run_server(config=build_config()) as server:
        port = server.port
        for one in processes(server)[1:]:
            open_sockets = one.net_connections("inet") if one.is_running() else []
            assert not any(found.laddr.port == port for found in open_sockets), one.cmdline()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_to_all_processes_of_the_service_drains_responses(workers: int) -> None:
    """Some service managers signal every process of a service."""
    with run_server(config=build_config({"step_s": 0.01}, workers=workers)) as server:
        everybody = processes(server)
        stream = Stream(server, max_tokens=150)
        for one in everybody:
            one.terminate()
        events = stream.events()
        assert events[-1] == "[DONE]" and len(events) == 1 + 150 + 1 + 1
        assert server.process.wait(20) == 0
    wait_until(lambda: all_gone(everybody), 30, "the end of all processes")
