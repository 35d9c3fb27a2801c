"""Clients share a busy model: nobody waits behind the many requests of another."""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from enginebay.server.auth.api_keys import create_key
from tests.integration.server.abused_server import COMPLETIONS
from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.raw_http import (
    assert_error,
    build_request,
    connect,
    parse_responses,
    read_to_end,
    wait_until,
)

MANY = 200


@contextmanager
def serve(
    model: dict[str, object], limits: dict[str, object] | None = None
) -> Iterator[tuple[BayProcess, dict[str, str]]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.yaml"
        keys = {name: create_key(file, name)[0] for name in ("a", "b")}
        server = {"keys_file": str(file), "log_level": "warning", "limits": limits or {}}
        with run_server(config={"models": {"toy": model}, "server": server}) as found:
            yield found, keys


def open_many(stack: ExitStack, server: BayProcess, key: str, count: int, max_tokens: int) -> list[socket.socket]:
    """Send requests that nobody reads the answers of yet."""
    body = json.dumps({"model": "toy", "prompt": "hello", "max_tokens": max_tokens, "ignore_eos": True}).encode()
    headers = {"authorization": f"Bearer {key}", "connection": "close"}
    sockets = [stack.enter_context(connect(server.port, 120)) for _ in range(count)]
    for sock in sockets:
        sock.sendall(build_request("POST", COMPLETIONS, body, headers))
    return sockets


def read_metric(server: BayProcess, key: str, name: str, label: str = "") -> float:
    text = httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {key}"}, timeout=60).text
    lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")) and label in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def ask_short(server: BayProcess, key: str) -> Any:
    body = {"model": "toy", "prompt": "hello", "max_tokens": 2}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{server.url}{COMPLETIONS}", json=body, headers=headers, timeout=120)


CASES = [
    pytest.param({"engine": "fake", "fake": {"step_s": 0.02, "max_batch": 4}}, 100, id="fake"),
    pytest.param(
        {"source": "smollm2", "engine": "llamacpp", "llamacpp": {"max_batch": 4, "context_length": 512}},
        48,
        id="llamacpp",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("model", "max_tokens"), CASES)
def test_a_short_request_beside_many_long_ones(model: dict[str, object], max_tokens: int) -> None:
    """It waits for one slot: nearly all of the others are still waiting when it is answered."""
    with serve(model) as (server, keys), ExitStack() as stack:
        open_many(stack, server, keys["a"], MANY, max_tokens)
        waiting = "enginebay_requests_waiting"
        wait_until(lambda: read_metric(server, keys["b"], waiting) >= MANY - 4, 60, "a full queue")
        assert ask_short(server, keys["b"]).status_code == 200
        assert read_metric(server, keys["b"], waiting) >= MANY - 4 - 12, "at most three rounds of four slots"
        counted = "enginebay_key_queue_time_seconds_count"
        assert read_metric(server, keys["b"], counted, 'key="b"') == 1


def test_a_full_queue_has_room_for_another_key() -> None:
    model: dict[str, object] = {"engine": "fake", "fake": {"step_s": 0.02, "max_batch": 2}}
    with serve(model, {"queue": 20}) as (server, keys), ExitStack() as stack:
        open_many(stack, server, keys["a"], 40, 200)
        errors = "enginebay_errors_total"
        wait_until(lambda: read_metric(server, keys["b"], errors, "overloaded") >= 18, 30, "a full queue")
        for _ in range(2):
            assert ask_short(server, keys["b"]).status_code == 200
        assert read_metric(server, keys["b"], errors, "overloaded") >= 19, "a new request of B displaced one of A"


@pytest.mark.slow
def test_a_large_prompt_is_refused_at_once() -> None:
    """Six prompts of 4 MB: neither their memory nor their time is spent."""
    model: dict[str, object] = {"source": "smollm2", "engine": "llamacpp", "llamacpp": {"context_length": 512}}
    with serve(model) as (server, keys), ExitStack() as stack:
        assert ask_short(server, keys["b"]).status_code == 200
        before = server.read_resident_bytes()
        prompt = "The quick brown fox. " * 190_000
        body = json.dumps({"model": "toy", "prompt": prompt, "max_tokens": 2}).encode()
        headers = {"authorization": f"Bearer {keys['a']}", "connection": "close"}
        sockets = [stack.enter_context(connect(server.port, 60)) for _ in range(6)]
        began = time.monotonic()
        for sock in sockets:
            sock.sendall(build_request("POST", COMPLETIONS, body, headers))
        assert ask_short(server, keys["b"]).status_code == 200
        for sock in sockets:
            [answer] = parse_responses(read_to_end(sock))
            error = assert_error(answer, 400, "prompt")
            assert error["code"] == "context_length_exceeded" and "at least" in error["message"]
        assert time.monotonic() - began < 30, "each took 10 s"
        assert server.read_resident_bytes() < before + (200 << 20)


def test_unfinished_bodies_do_not_fill_the_memory() -> None:
    """One key may hold 8 MiB of them here; others are not affected."""
    model: dict[str, object] = {"engine": "fake"}
    with serve(model, {"client_body_buffer_bytes": 8 << 20}) as (server, keys), ExitStack() as stack:
        assert ask_short(server, keys["b"]).status_code == 200
        before = server.read_resident_bytes()
        request = build_request("POST", COMPLETIONS, b"x" * (2 << 20), {"authorization": f"Bearer {keys['a']}"})
        sockets = [stack.enter_context(connect(server.port, 60)) for _ in range(100)]
        for sock in sockets:
            with suppress(ConnectionError):  # it may be refused while we send
                sock.sendall(request[:-100])
        wait_until(lambda: read_metric(server, keys["b"], "enginebay_rejected_total", "http_429") >= 96, 30, "refusals")
        assert server.read_resident_bytes() < before + (64 << 20)
        assert ask_short(server, keys["b"]).status_code == 200
        assert ask_short(server, keys["a"]).status_code == 200, "small ones are always read"


def test_keys_share_all_replicas_fairly() -> None:
    """Both replicas are full of one client's requests: another one waits for one slot, not behind them."""
    fake = {"step_s": 0.02, "max_batch": 2}
    model: dict[str, object] = {"engine": "fake", "replicas": 2, "fake": fake}
    with serve(model) as (server, keys), ExitStack() as stack:
        ready, waiting = "enginebay_replicas_ready", "enginebay_requests_waiting"
        wait_until(lambda: read_metric(server, keys["b"], ready) == 2, 60, "two replicas")
        open_many(stack, server, keys["a"], 100, 100)
        wait_until(lambda: read_metric(server, keys["b"], waiting) >= 96, 60, "a full queue")
        for name in ("toy", "toy#2"):
            running = "enginebay_replica_running"
            wait_until(lambda: read_metric(server, keys["b"], running, f'replica="{name}"') == 2, 30, "two in each")  # noqa: B023
        assert ask_short(server, keys["b"]).status_code == 200
        assert read_metric(server, keys["b"], waiting) >= 96 - 12, "at most three rounds of four slots"
