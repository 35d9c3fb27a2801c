"""A server on the fake engine that gets all kinds of bad input, and must be as good as new afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx
import pytest

from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.raw_http import RawResponse, assert_error, build_request, wait_until

CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
HELLO = [{"role": "user", "content": "Say hello."}]
BODY_BYTES = 4 << 20
LIMITS = {"header_timeout_s": 4.0, "body_timeout_s": 6.0, "body_bytes": BODY_BYTES}
BODY = json.dumps({"model": "toy", "messages": HELLO, "max_tokens": 4, "ignore_eos": True}).encode()
GOOD = build_request("POST", CHAT, BODY)
LAST = build_request("GET", "/health/live", headers={"connection": "close"})
MB = 10**6


def stream_request(max_tokens: int) -> bytes:
    body = {"model": "toy", "messages": HELLO, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    return build_request("POST", CHAT, json.dumps(body).encode())


@dataclass
class AbusedServer:
    server: BayProcess
    client: httpx.Client
    resident_bytes: int = 0  # before anything bad was sent

    @property
    def port(self) -> int:
        return self.server.port

    def post(self, path: str, body: dict[str, Any] | bytes, headers: dict[str, str] | None = None) -> RawResponse:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        found = self.client.post(path, content=content, headers={"content-type": "application/json", **(headers or {})})
        return RawResponse(found.status_code, dict(found.headers), found.content)

    def assert_refused(
        self, path: str, body: dict[str, Any] | bytes, param: str | None, status: int = 400
    ) -> dict[str, Any]:
        """The body is refused with this status, and the answer names the parameter."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        error = assert_error(self.post(path, content), status, asked=content.decode(errors="replace"))
        if status < 500:
            assert error["param"] == param, error
        return error

    def assert_answers(self) -> None:
        """A well-formed request is answered."""
        answer = self.post(CHAT, {"model": "toy", "messages": HELLO, "max_tokens": 4, "ignore_eos": True})
        assert answer.status == 200, answer.body
        assert json.loads(answer.body)["usage"]["completion_tokens"] == 4

    def read_gauge(self, name: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def wait_idle(self) -> None:
        names = ("enginebay_engine_running", "enginebay_requests_running", "enginebay_requests_waiting")
        wait_until(lambda: not any(map(self.read_gauge, names)), 20, "an idle engine")

    def assert_as_before(self) -> None:
        """Idle, answering, and no larger than it was."""
        self.wait_idle()
        self.assert_answers()
        most = self.resident_bytes * 1.1 + (8 << 20)
        wait_until(lambda: self.server.read_resident_bytes() <= most, 30, f"memory back under {most / 2**20:.0f} MiB")


@pytest.fixture(scope="session")
def battered() -> Iterator[AbusedServer]:
    config: dict[str, object] = {
        "models": {"toy": {"engine": "fake", "fake": {"step_s": 0.001}}},
        "server": {"limits": LIMITS, "log_level": "warning"},
    }
    with run_server(config=config) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        found = AbusedServer(server, client)
        _warm_up(found)
        found.resident_bytes = server.read_resident_bytes()
        yield found
        assert "unexpected error" not in server.read_log(), server.read_log()[-4000:]


def _warm_up(battered: AbusedServer) -> None:
    """What a server grows to by itself: every endpoint once, and bodies of the largest size."""
    for _ in range(50):
        battered.assert_answers()
    for prompt in ("x" * (BODY_BYTES - 1000), ["x" * 1000] * 100, [1] * 1_000_000):
        assert battered.post(COMPLETIONS, {"model": "toy", "prompt": prompt, "max_tokens": 4}).status in (200, 400)
    bias = {str(number): 1 for number in range(100_000)}
    assert battered.post(CHAT, {"model": "toy", "messages": HELLO, "logit_bias": bias}).status == 400
    for path, body in ((RESPONSES, {"input": "hi"}), (EMBEDDINGS, {"input": "hi"}), (COMPLETIONS, {"prompt": "hi"})):
        assert battered.post(path, {"model": "toy", **body}).status == 200
    for path in ("/openapi.json", "/metrics", "/v1/models", "/docs"):
        assert battered.client.get(path).status_code == 200
