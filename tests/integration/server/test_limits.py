"""Limits: the queue, caps, timeouts, and clients that do not read."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
import psutil
import pytest

from tests.integration.server.abused_server import CHAT, EMBEDDINGS, HELLO, AbusedServer
from tests.integration.server.bay_process import run_server
from tests.integration.server.fake_requests import BODY, ask, build_config
from tests.integration.server.raw_http import (
    assert_error,
    build_request,
    connect,
    read_response,
    read_to_end,
    wait_until,
)

# The queue, caps and timeouts


@pytest.fixture(scope="module")
def tight() -> Iterator[AbusedServer]:
    limits = {
        "running": 1, "queue": 1, "n": 2, "max_tokens": 2000, "connections": 20, "stop": 2, "logit_bias": 3,
        "prompts": 2, "messages": 2, "tools": 1, "body_bytes": 32 << 20,
    }  # fmt: skip
    config = build_config({"step_s": 0.01}, limits)
    with run_server(config=config) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield AbusedServer(server, client)


@pytest.fixture(scope="module")
def hasty() -> Iterator[AbusedServer]:
    limits: dict[str, object] = {
        "running": 1,
        "queue_timeout_s": 1.0,
        "keep_alive_s": 0.5,
        "stream_buffer_bytes": 64 << 10,
    }
    with (
        run_server(config=build_config({"step_s": 0.005}, limits)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield AbusedServer(server, client)


@contextmanager
def busy(server: AbusedServer) -> Iterator[socket.socket]:
    """Occupy the only slot with a stream of ten seconds or more, which ends with the block."""
    with connect(server.port) as sock:
        sock.sendall(build_request("POST", CHAT, json.dumps({**BODY, "max_tokens": 2000, "stream": True}).encode()))
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        yield sock


def test_a_full_queue(tight: AbusedServer) -> None:
    with ThreadPoolExecutor(1) as threads:
        with busy(tight):
            waiting = threads.submit(ask, tight.server, max_tokens=4)
            wait_until(lambda: tight.read_gauge("enginebay_requests_waiting") == 1)
            assert tight.client.get("/health/ready").status_code == 503
            refused = ask(tight.server)
            error = assert_error(refused, 503)
            assert error["code"] == "overloaded" and int(refused.headers["retry-after"]) >= 1
        assert waiting.result().status == 200
    assert ask(tight.server).status == 200


def test_the_queue_timeout(hasty: AbusedServer) -> None:
    with busy(hasty) as sock:
        began = time.monotonic()
        refused = ask(hasty.server)
        assert time.monotonic() - began > 0.9
        assert "timed out after 1 s" in assert_error(refused, 503)["message"] and "retry-after" in refused.headers
        assert sock.recv(4096)  # it goes on
    hasty.wait_idle()


def test_leaving_the_queue_frees_the_slot(tight: AbusedServer) -> None:
    with busy(tight):
        for path, body in ((CHAT, BODY), (EMBEDDINGS, {"model": "toy", "input": "hi"})) * 3:
            with connect(tight.port) as sock:
                sock.sendall(build_request("POST", path, json.dumps(body).encode()))
                wait_until(lambda: tight.read_gauge("enginebay_requests_waiting") == 1)
            wait_until(lambda: tight.read_gauge("enginebay_requests_waiting") == 0)
    tight.wait_idle()
    assert ask(tight.server).status == 200


@pytest.fixture(scope="module")
def brief() -> Iterator[AbusedServer]:
    config = build_config({"step_s": 0.01}, {"request_timeout_s": 2.0})
    with run_server(config=config) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield AbusedServer(server, client)


def test_the_request_timeout(brief: AbusedServer) -> None:
    began = time.monotonic()
    error = assert_error(ask(brief.server, max_tokens=3000), 504)
    assert error["code"] == "timeout" and 1.9 < time.monotonic() - began < 15  # it would take 30
    brief.wait_idle()


def test_a_stream_that_times_out_ends_with_an_error(brief: AbusedServer) -> None:
    answer = ask(brief.server, max_tokens=3000, stream=True)
    assert answer.status == 200
    events = [line.removeprefix("data: ") for line in answer.body.decode().split("\n\n") if line]
    assert json.loads(events[-1])["error"]["code"] == "timeout" and "[DONE]" not in events
    assert 2 < len(events) < 1500
    brief.wait_idle()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 3}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"max_tokens": 2001}, "max_tokens"),
        ({"stop": ["a", "b", "c"]}, "stop"),
        ({"stop_token_ids": [1, 2, 3]}, "stop_token_ids"),
        ({"logit_bias": {"1": 1, "2": 1, "3": 1, "4": 1}}, "logit_bias"),
        ({"logit_bias": {str(number): 1 for number in range(10**6)}}, "logit_bias"),
        ({"messages": HELLO * 3}, "messages"),
        ({"tools": [{"type": "function", "function": {"name": name}} for name in "ab"]}, "tools"),
    ],
)
def test_caps_of_the_configuration(tight: AbusedServer, fields: dict[str, Any], param: str) -> None:
    assert_error(ask(tight.server, **fields), 400, param)


def test_defaults_are_capped_too() -> None:
    config: dict[str, Any] = {"server": {"limits": {"max_tokens": 10}}, "models": {"toy": {"engine": "fake"}}}
    endless = {"model": "toy", "ignore_eos": True}
    with run_server(config=config) as server:
        chat = httpx.post(f"{server.url}/v1/chat/completions", json={**endless, "messages": HELLO}, timeout=60).json()
        text = httpx.post(f"{server.url}/v1/completions", json={**endless, "prompt": "hi"}, timeout=60).json()
        response = httpx.post(f"{server.url}/v1/responses", json={"model": "toy", "input": "hi"}, timeout=60).json()
        over = httpx.post(
            f"{server.url}/v1/chat/completions",
            json={**endless, "messages": HELLO, "max_completion_tokens": 11},
            timeout=60,
        )
    assert chat["usage"]["completion_tokens"] == text["usage"]["completion_tokens"] == 10
    assert response["usage"]["output_tokens"] <= 10
    assert over.status_code == 400 and over.json()["error"]["param"] == "max_completion_tokens"


def test_prompts_times_choices_are_capped(tight: AbusedServer) -> None:
    answer = tight.client.post("/v1/completions", json={"model": BODY["model"], "prompt": ["a", "b"], "n": 2})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "n"


def test_an_idle_connection_is_closed(hasty: AbusedServer) -> None:
    with connect(hasty.port) as sock:
        began = time.monotonic()
        sock.sendall(build_request("GET", "/health/live"))
        assert read_response(sock)[0].status == 200
        assert read_to_end(sock) == b""
    assert 0.4 < time.monotonic() - began < 20


def test_connections_are_limited(tight: AbusedServer) -> None:
    """Connections over the limit wait until another closes."""
    clients = [connect(tight.port) for _ in range(30)]
    try:
        clients[-1].sendall(build_request("GET", "/health/live"))
        clients[-1].settimeout(1)
        with pytest.raises(TimeoutError):
            clients[-1].recv(1)
        clients[-1].settimeout(30)
        for client in clients[:25]:
            client.close()
        assert read_response(clients[-1])[0].status == 200
    finally:
        for client in clients:
            client.close()


@pytest.mark.slow
def test_time_while_the_server_was_stopped_does_not_count() -> None:
    with run_server(config=build_config(limits={"keep_alive_s": 4})) as server, connect(server.port) as sock:
        sock.sendall(build_request("GET", "/health/live"))
        assert read_response(sock)[0].status == 200
        process = psutil.Process(server.process.pid)
        process.suspend()
        sock.sendall(build_request("GET", "/health/live"))  # in time, but nobody is there to read it
        time.sleep(5)
        process.resume()
        assert read_response(sock)[0].status == 200


# Clients that do not read


BEGUN = "enginebay_time_to_first_token_seconds_count"


@pytest.fixture(scope="module")
def fast() -> Iterator[AbusedServer]:
    limits = {"stream_buffer_bytes": 64 << 10, "stall_timeout_s": 1.0}
    config = build_config({"context_length": 10_000_000}, limits)
    with run_server(config=config) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield AbusedServer(server, client)


def test_a_client_that_does_not_read_holds_neither_engine_nor_memory(fast: AbusedServer) -> None:
    for _ in range(20):
        fast.assert_answers()
    before = fast.server.read_resident_bytes()
    body = {**BODY, "max_tokens": 5_000_000, "stream": True, "logprobs": True, "top_logprobs": 5}
    data = build_request("POST", CHAT, json.dumps(body).encode())
    clients = [connect(fast.port, receive_bytes=4096) for _ in range(50)]
    try:
        begun = fast.read_gauge(BEGUN)
        for client in clients:
            client.sendall(data)
        most = 0
        wait_until(lambda: fast.read_gauge(BEGUN) > begun, 30, "their answers")
        began = time.monotonic()
        while fast.read_gauge("enginebay_requests_running") or fast.read_gauge("enginebay_engine_running"):
            most = max(most, fast.server.read_resident_bytes())
            assert time.monotonic() - began < 40, "somebody who does not read is still being answered"
            time.sleep(0.1)
        # 64 KiB here, 64 KiB in the transport and what one step brings, for each of them
        assert most - before < 50 * (512 << 10), (most - before) >> 20
        wait_until(lambda: fast.read_gauge("enginebay_connections") <= 2, 30, "the end of their connections")
    finally:
        for client in clients:
            client.close()
    fast.assert_answers()


def test_pipelined_responses_that_are_not_read(fast: AbusedServer) -> None:
    """A client that keeps sending without reading is no longer read, and finally disconnected."""
    before = fast.server.read_resident_bytes()
    asked = build_request("GET", "/openapi.json") * 100
    with connect(fast.port, receive_bytes=4096) as sock:
        sock.settimeout(0.5)
        sent = 0
        with pytest.raises(OSError):
            while sent < 50_000_000:
                sent += sock.send(asked)
        most = fast.server.read_resident_bytes()
    assert most - before < 20 << 20, (most - before) >> 20
    wait_until(lambda: fast.read_gauge("enginebay_connections") <= 2, 30, "the end of the connection")


def test_a_slow_reader_that_makes_progress_gets_everything(hasty: AbusedServer) -> None:
    body = {**BODY, "max_tokens": 300, "stream": True}
    with connect(hasty.port, receive_bytes=4096) as sock:
        sock.sendall(build_request("POST", CHAT, json.dumps(body).encode()))
        parts = []
        for _ in range(40):
            parts.append(sock.recv(1024))
            time.sleep(0.01)
        answer, _ = read_response(sock, b"".join(parts))
    assert answer.body.count(b"data: ") == 1 + 300 + 1 + 1 and answer.body.endswith(b"data: [DONE]\n\n")
