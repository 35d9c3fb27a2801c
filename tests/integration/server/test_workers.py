"""Several server processes for one fleet: they share connections, rate limits and metrics, and are restarted when they die."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import psutil
import pytest

from enginebay.server.auth.api_keys import create_key
from tests.integration.fleet.server_site import find_children
from tests.integration.server.abused_server import CHAT
from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.fake_requests import BODY, build_bearer, build_config
from tests.integration.server.raw_http import build_request, connect, read_response, wait_until

ALLOWED = 40


class Shared:
    def __init__(self, server: BayProcess, keys: dict[str, str]) -> None:
        self.server, self.keys = server, keys
        self.headers = build_bearer(keys["plain"])

    def children(self) -> list[psutil.Process]:
        return find_children(self.server, "enginebay.server.supervisor.child_server")

    def metrics(self) -> dict[str, float]:
        """Return every sample, and the sum over all labels under the bare name."""
        found: dict[str, float] = {}
        for line in httpx.get(f"{self.server.url}/metrics", headers=self.headers, timeout=60).text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                bare = name.partition("{")[0]
                found[name] = float(value)
                if bare != name:
                    found[bare] = found.get(bare, 0) + float(value)
        return found

    def asked(self) -> float:
        return sum(value for name, value in self.metrics().items() if 'endpoint="chat"' in name)

    def ask(self, key: str) -> int:
        """Use a new connection, so that either process may get it."""
        with connect(self.server.port) as sock:
            sock.sendall(build_request("POST", CHAT, json.dumps(BODY).encode(), build_bearer(self.keys[key])))
            return read_response(sock)[0].status


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys = {"plain": create_key(file, "plain")[0], "few": create_key(file, "few", requests_per_minute=ALLOWED)[0]}
    keys["short"] = create_key(file, "short", tokens_per_minute=60)[0]
    with run_server(config=build_config({"step_s": 0.002}, workers=2), options=["--keys-file", str(file)]) as server:
        yield Shared(server, keys)


def test_both_serve_and_their_metrics_are_merged(shared: Shared) -> None:
    before, asked = shared.asked(), 200
    busy_s = {one.pid: sum(one.cpu_times()[:2]) for one in shared.children()}
    assert len(busy_s) == 2
    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(shared.ask, ["plain"] * asked)) == {200}
    wait_until(lambda: shared.asked() - before == asked, 30, "the count of all")  # whichever process is asked for it
    assert all(sum(one.cpu_times()[:2]) > busy_s[one.pid] for one in shared.children())
    found = shared.metrics()
    assert found["enginebay_completion_tokens_total"] >= asked * 4
    assert found["enginebay_requests_running"] == found["enginebay_engine_running"] == 0
    assert found["enginebay_time_to_first_token_seconds_count"] >= asked
    of_processes = sum(one.memory_info().rss for one in (psutil.Process(shared.server.process.pid), *shared.children()))
    assert found["process_resident_memory_bytes"] == pytest.approx(of_processes, rel=0.1)


@pytest.mark.slow
def test_persistent_connections_are_divided(shared: Shared) -> None:
    """Each process gets some of them, unless one is delayed."""
    clients: list[socket.socket] = []

    def divided() -> bool:
        fresh = [connect(shared.server.port) for _ in range(40)]
        clients.extend(fresh)
        for client in fresh:
            client.sendall(build_request("GET", "/health/live"))
            assert read_response(client)[0].status == 200
        held = [
            len([found for found in one.net_connections("inet") if found.status == psutil.CONN_ESTABLISHED])
            for one in shared.children()
        ]
        assert sum(held) >= len(clients), held
        return len(held) == 2 and all(held)

    try:
        assert any(divided() for _ in range(5))
    finally:
        for client in clients:
            client.close()


def test_a_rate_limit_is_shared(shared: Shared) -> None:
    """Exactly as many requests are allowed as by a single process."""
    began = time.monotonic()
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(shared.ask, ["few"] * (2 * ALLOWED)))
    refilled = int((time.monotonic() - began) * ALLOWED / 60)
    assert ALLOWED <= found.count(200) <= ALLOWED + refilled
    assert found.count(200) + found.count(429) == len(found)
    wait_until(
        lambda: shared.metrics()["enginebay_rate_limited_total"] == found.count(429), 30, "the count of refusals"
    )


def test_tokens_are_charged_across_processes(shared: Shared) -> None:
    assert shared.ask("short") == 200
    body = {**BODY, "max_tokens": 100}
    answer = httpx.post(shared.server.url + CHAT, json=body, headers=build_bearer(shared.keys["short"]), timeout=30)
    assert answer.status_code == 200
    wait_until(lambda: shared.ask("short") == 429, 30, "the charge")
    assert {shared.ask("short") for _ in range(10)} == {429}


def test_a_process_that_dies_is_restarted(shared: Shared) -> None:
    first, second = shared.children()
    first.kill()
    answered = [shared.ask("plain") for _ in range(20)]  # the other one goes on meanwhile
    assert set(answered) == {200}
    wait_until(lambda: len(shared.children()) == 2 and first not in shared.children(), 30, "a new process")
    second.kill()  # so that only the new one is left
    assert shared.ask("plain") == 200
    wait_until(lambda: len(shared.children()) == 2 and second not in shared.children(), 30, "another new process")
    both = shared.children()
    for one in both:
        one.kill()
    wait_until(lambda: len(shared.children()) == 2 and not set(both) & set(shared.children()), 30, "two new processes")
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(shared.ask, ["plain"] * 50)) == {200}
    assert httpx.get(f"{shared.server.url}/health/ready", timeout=60).status_code == 200


def test_a_killed_process_is_logged_and_its_counts_stay(shared: Shared) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(shared.ask, ["plain"] * 40)) == {200}
    counted = shared.asked()
    killed = shared.children()[0]
    killed.kill()
    seen = list[float]()

    def is_replaced() -> bool:
        seen.append(shared.asked())
        return len(shared.children()) == 2 and killed not in shared.children()

    wait_until(is_replaced, 30, "a new process")
    seen.append(shared.asked())
    assert min(seen) >= counted
    (line,) = [line for line in shared.server.read_log().splitlines() if f"pid={killed.pid} " in line]
    assert "server process died" in line and "signal=SIGKILL" in line and "requests=0" in line and "error" in line
    assert shared.metrics()["enginebay_requests_running"] == 0


@pytest.mark.slow
def test_limits_are_divided() -> None:
    """The limit on running requests holds for the engine, whatever the number of processes."""
    limits: dict[str, object] = {"running": 4, "queue": 100}
    with run_server(config=build_config({"step_s": 0.01}, limits, workers=2)) as server:

        def ask(_: int) -> int:
            return httpx.post(server.url + CHAT, json={**BODY, "max_tokens": 30}, timeout=30).status_code

        most = 0.0
        with ThreadPoolExecutor(16) as threads:
            answers = [threads.submit(ask, number) for number in range(32)]
            while not all(one.done() for one in answers):
                text = httpx.get(f"{server.url}/metrics", timeout=60).text
                [line] = [line for line in text.splitlines() if line.startswith("enginebay_engine_running{")]
                most = max(most, float(line.rsplit(" ", 1)[1]))
            assert {one.result() for one in answers} == {200}
        assert 0 < most <= 4  # undivided it would be 8


@pytest.mark.slow
def test_metrics_do_not_wait_for_a_process_that_hangs() -> None:
    with run_server(config=build_config(workers=2)) as server:
        shared = Shared(server, {"plain": "any"})
        for _ in range(8):
            assert httpx.post(server.url + CHAT, json=BODY, timeout=60).status_code == 200
        counted = shared.metrics()["enginebay_requests_total"]
        for stopped in shared.children():
            stopped.suspend()
            try:
                assert shared.metrics()["enginebay_requests_total"] >= counted  # it is not left out either
            finally:
                stopped.resume()


@pytest.mark.slow
def test_a_process_that_hangs_is_restarted() -> None:
    config = {**build_config(workers=2), "fleet": {"hang_s": 10}}
    with run_server(config=config) as server:
        shared = Shared(server, {"plain": "any"})
        for stopped in shared.children():  # one after the other, so that no old one is left
            stopped.suspend()
            wait_until(lambda stopped=stopped: not stopped.is_running(), 60, "its end")
            wait_until(lambda: len(shared.children()) == 2, 60, "a new process")
            lines = [line for line in server.read_log().splitlines() if "server process hung" in line]
            assert f"pid={stopped.pid}" in lines[-1].split()
            with ThreadPoolExecutor(8) as threads:
                assert set(threads.map(shared.ask, ["plain"] * 16)) == {200}


@pytest.mark.slow
def test_all_processes_share_one_log(tmp_path: Path) -> None:
    with run_server(config=build_config(workers=2, log_level="info"), options=["--log-format", "json"]) as server:
        for number in range(20):
            headers = {"x-request-id": f"mine-{number}"}
            assert httpx.post(server.url + CHAT, json=BODY, headers=headers, timeout=60).status_code == 200
        wait_until(lambda: server.read_log().count("mine-") == 20, 30, "all lines")
        lines = [json.loads(line) for line in server.read_log().splitlines() if line.startswith("{")]
        assert {line["request_id"] for line in lines if "request_id" in line} >= {f"mine-{n}" for n in range(20)}
