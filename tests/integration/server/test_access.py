"""Access control: keys, rate limits, the listening address, and web pages of other sites."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import psutil
import pytest

from enginebay.server.auth.api_keys import create_key
from tests.integration.server.abused_server import CHAT, COMPLETIONS
from tests.integration.server.bay_process import BayProcess, read_command, run_server
from tests.integration.server.fake_requests import ask, build_bearer, build_config
from tests.integration.server.raw_http import (
    RawResponse,
    assert_error,
    build_request,
    connect,
    read_response,
    wait_until,
)

# Keys and rates


class Keys:
    """A server with keys of every kind."""

    from_variable = "a-key-from-the-environment"
    admin_from_variable = "an-admin-key-from-the-environment"

    def __init__(self, server: BayProcess, file: Path, texts: dict[str, str]) -> None:
        self.server, self.file, self.texts = server, file, texts


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    texts = {
        "plain": create_key(file, "plain")[0],
        "admin": create_key(file, "admin", admin=True)[0],
        "few": create_key(file, "few", requests_per_minute=3)[0],
        "short": create_key(file, "short", tokens_per_minute=60)[0],
        "manager": create_key(file, "manager", admin=True)[0],
    }
    entries = file.read_text().split("- id:")
    entries[-1] = entries[-1].replace("- inference\n", "")  # the last one may manage, but not ask
    file.write_text("- id:".join(entries))
    environ = {"ENGINEBAY_API_KEY": Keys.from_variable, "ENGINEBAY_ADMIN_KEY": Keys.admin_from_variable}
    with run_server(config=build_config(), options=["--keys-file", str(file)], environ=environ) as server:
        yield Keys(server, file, texts)


def listing(server: BayProcess, headers: dict[str, str]) -> RawResponse:
    """Send raw bytes: a client library refuses to send some of these headers."""
    with connect(server.port) as sock:
        sock.sendall(build_request("GET", "/v1/models", headers=headers))
        return read_response(sock)[0]


def test_requests_without_a_valid_key_are_refused(keys: Keys) -> None:
    known = keys.texts["plain"]
    for headers in (
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        build_bearer("wrong"),
        build_bearer(known + "x"),
        build_bearer(known[:-1]),
        build_bearer(known.upper()),
        {"authorization": known},
        {"authorization": f"Basic {known}"},
        build_bearer("x" * 20_000),
        build_bearer("\u00ff"),
    ):
        answer = listing(keys.server, headers)
        error = assert_error(answer, 401)
        assert error["code"] == "invalid_api_key" and answer.headers["www-authenticate"] == "Bearer"
    for path in (COMPLETIONS, "/v1/responses", "/v1/embeddings", "/tokenize", "/detokenize"):
        assert_error(ask(keys.server, path=path), 401)
    for path in ("/v1/models", "/v1/models/toy", "/metrics"):
        assert httpx.get(keys.server.url + path, timeout=60).status_code == 401
    for path in ("/health/live", "/health/ready", "/docs", "/openapi.json"):
        assert httpx.get(keys.server.url + path, timeout=60).status_code == 200


def test_keys_of_anthropics_clients(keys: Keys) -> None:
    body = {"model": "toy", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]}
    url = f"{keys.server.url}/v1/messages"
    for headers in ({"x-api-key": keys.texts["plain"]}, build_bearer(keys.texts["plain"])):
        assert httpx.post(url, json=body, headers=headers, timeout=60).status_code == 200
    for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": keys.texts["plain"][:-1]}):
        refused = httpx.post(url, json=body, headers=headers, timeout=60)
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    managed = httpx.post(url, json=body, headers={"x-api-key": keys.texts["manager"]}, timeout=60)
    assert (managed.status_code, managed.json()["error"]["type"]) == (403, "permission_error")


def test_without_a_key_health_and_documentation_name_no_model(keys: Keys) -> None:
    for path in ("/health", "/health/ready"):
        for headers in ({}, build_bearer("wrong"), {"authorization": "Basic x"}):
            assert httpx.get(keys.server.url + path, headers=headers, timeout=60).json() == {"status": "ready"}
        known = httpx.get(keys.server.url + path, headers=build_bearer(keys.texts["plain"]), timeout=60).json()
        assert known == {"status": "ready", "models": ["toy"]}
    url = f"{keys.server.url}/openapi.json"
    assert '"toy"' not in httpx.get(url, timeout=60).text
    assert '"toy"' in httpx.get(url, headers=build_bearer(keys.texts["plain"]), timeout=60).text


def test_two_keys_in_one_request_are_refused(keys: Keys) -> None:
    twice = build_request("GET", "/v1/models", headers=build_bearer(keys.texts["plain"])).replace(
        b"\r\n\r\n", f"\r\nauthorization: Bearer {keys.texts['plain']}\r\n\r\n".encode()
    )
    with connect(keys.server.port) as sock:
        sock.sendall(twice)
        assert_error(read_response(sock)[0], 401)


def test_a_valid_key_is_accepted_from_any_origin(keys: Keys) -> None:
    for key in (keys.texts["plain"], keys.texts["admin"], Keys.from_variable, Keys.admin_from_variable):
        assert ask(keys.server, build_bearer(key)).status == 200
    assert listing(keys.server, {"authorization": f"bearer   {keys.texts['plain']} "}).status == 200
    assert keys.server.openai(keys.texts["plain"]).models.retrieve("toy").id == "toy"


def test_a_key_without_the_scope_is_refused(keys: Keys) -> None:
    error = assert_error(ask(keys.server, build_bearer(keys.texts["manager"])), 403)
    assert error["code"] == "insufficient_scope" and "inference" in error["message"]


def test_the_file_and_the_log_hold_no_key(keys: Keys) -> None:
    ask(keys.server, build_bearer(keys.texts["plain"]))
    for text in keys.texts.values():
        secret = text.split("-", 2)[2]  # the random part, which may have dashes of its own
        assert secret not in keys.file.read_text() and secret not in keys.server.read_log()
    assert keys.file.read_text().count("hash: sha256:") == len(keys.texts)


def test_requests_per_minute(keys: Keys) -> None:
    few = build_bearer(keys.texts["few"])
    answers = [ask(keys.server, few) for _ in range(3)]
    assert [answer.status for answer in answers] == [200] * 3
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0"]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "3"
    refused = ask(keys.server, few)
    error = assert_error(refused, 429)
    assert error["type"] == "rate_limit_error" and error["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    assert refused.headers["x-ratelimit-remaining-requests"] == "0" and "x-ratelimit-reset-requests" in refused.headers
    assert ask(keys.server, build_bearer(keys.texts["plain"])).status == 200
    assert httpx.get(f"{keys.server.url}/v1/models", headers=few, timeout=60).status_code == 200  # costs nothing


def test_tokens_per_minute(keys: Keys) -> None:
    """Token usage is known only afterwards: the request that exceeds the limit succeeds, the next has to wait."""
    short = build_bearer(keys.texts["short"])
    answer = ask(keys.server, short, max_tokens=100)
    assert answer.status == 200 and answer.headers["x-ratelimit-limit-tokens"] == "60"
    refused = ask(keys.server, short)
    assert_error(refused, 429)
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    assert int(refused.headers["retry-after"]) >= 40  # over a hundred used, one per second comes back


# Where it listens


def serve_until_it_ends(*options: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enginebay.cli.main", "serve", "--engine", "fake", "--port", "0", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **(environ or {})})


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_exposed_server_needs_a_key(host: str, tmp_path: Path) -> None:
    ended = serve_until_it_ends("--host", host, environ={"ENGINEBAY_HOME": str(tmp_path)})
    assert ended.returncode == 2
    assert "no API key is set" in ended.stderr and "--allow-without-key" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_exposed_server_with_a_key_or_allow_without_key() -> None:
    with run_server(config=build_config(), options=["--host", "0.0.0.0", "--allow-without-key"]) as server:
        assert ask(server).status == 200
        assert ask(server, {"host": "models.example.org"}).status == 200
    key = {"ENGINEBAY_API_KEY": "a-key-from-the-environment"}
    with run_server(config=build_config(), options=["--host", "0.0.0.0"], environ=key) as server:
        assert ask(server).status == 401
        assert ask(server, {**build_bearer(key["ENGINEBAY_API_KEY"]), "host": "models.example.org"}).status == 200


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = serve_until_it_ends("--port", port)
    assert ended.returncode == 2 and f"port {port} is in use" in ended.stderr and "Traceback" not in ended.stderr


def _loading(pid: int) -> list[psutil.Process]:
    found = psutil.Process(pid).children()
    return [one for one in found if "worker/bootstrap.py serve " in " ".join(read_command(one))]


def test_a_port_taken_while_the_model_was_loading() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "enginebay.cli.main", "serve", "--engine", "fake", "--port", port]
        late = subprocess.Popen([*command, "--set", "load_s=2"], stderr=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: _loading(late.pid), 60, "the load")
            [worker] = _loading(late.pid)
            worker.suspend()
            taken.listen()
            worker.resume()
            _, said = late.communicate(timeout=60)
        finally:
            late.kill()
    assert late.returncode == 2 and f"port {port} is in use" in said and "Traceback" not in said


# Web pages


@pytest.fixture(scope="module")
def keyless() -> Iterator[BayProcess]:
    with run_server(config=build_config(cors_origins=["https://app.example.org"])) as server:
        yield server


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil.example", "https://app.example.org.evil"]
)
def test_other_origins_are_refused(keyless: BayProcess, origin: str) -> None:
    answer = ask(keyless, {"origin": origin})
    assert_error(answer, 403)
    assert "access-control-allow-origin" not in answer.headers


def test_allowed_origins_get_cors_headers(keyless: BayProcess) -> None:
    origin = {"origin": "https://app.example.org"}
    answer = ask(keyless, origin)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example.org"
    assert answer.headers["vary"] == "origin"
    asked = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    preflight = httpx.options(keyless.url + CHAT, headers=asked, timeout=60)
    assert preflight.status_code == 204 and not preflight.content
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    wrong = httpx.options(keyless.url + CHAT, headers={**asked, "origin": "https://evil.example"}, timeout=60)
    assert wrong.status_code == 403 and "access-control-allow-origin" not in wrong.headers


@pytest.mark.parametrize(("origin", "told"), [("https://app.example.org", True), ("https://evil.example", False)])
def test_an_allowed_page_may_read_why_its_body_was_refused(keyless: BayProcess, origin: str, told: bool) -> None:
    with connect(keyless.port) as sock:
        sock.sendall(build_request("POST", CHAT, headers={"origin": origin, "content-length": str(10**12)}))
        answer, _ = read_response(sock)
    assert answer.status == 413
    assert answer.headers.get("access-control-allow-origin") == (origin if told else None)


def test_the_servers_own_origin_is_allowed(keyless: BayProcess) -> None:
    assert ask(keyless, {"origin": keyless.url}).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1", "[2001:db8::1]:80"]
)
def test_dns_rebinding_is_refused(keyless: BayProcess, host: str) -> None:
    assert_error(ask(keyless, {"host": host}), 403, asked=host)


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1", "[::1]:8000", "toy.localhost"])
def test_local_host_names_are_allowed(keyless: BayProcess, host: str) -> None:
    assert ask(keyless, {"host": host}).status == 200
