"""Outgoing requests: one policy for proxies, certificates, redirects and sizes, in the blocking and the async client."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from enginebay.engines.openai.remote_client import RemoteClient
from enginebay.engines.openai.remote_server import RemoteServer
from enginebay.errors import ConfigError, Unreachable
from enginebay.util.http_client import HttpClient
from enginebay.util.http_policy import find_proxy, is_loopback

HOST = "models.example"  # only the proxy knows it
CREDENTIALS = "Basic dXNlcjpwQHNz"  # user:p@ss


class Handler(BaseHTTPRequestHandler):
    """Echoes the request; as a proxy it opens tunnels to `tunnel_to`."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, str | None]]
    tunnel_to: int

    def do_GET(self) -> None:
        self.seen.append((self.command, self.path, self.headers["Proxy-Authorization"]))
        if self.path.endswith("/moved"):
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = json.dumps({"data": [{"id": "m"}], "key": self.headers["Authorization"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + 10 * self.path.endswith("/truncated")))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.path.endswith("/truncated")

    def do_CONNECT(self) -> None:
        self.seen.append((self.command, self.path, self.headers["Proxy-Authorization"]))
        if self.headers["Proxy-Authorization"] != CREDENTIALS:
            self.send_error(407)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.flush()
        with socket.create_connection(("127.0.0.1", self.tunnel_to)) as upstream:
            threading.Thread(target=pump, args=(upstream, self.connection), daemon=True).start()
            pump(self.connection, upstream)
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
    except OSError:
        pass


Start = Callable[..., tuple[int, list[tuple[str, str, str | None]]]]


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[ThreadingHTTPServer] = []

    def start_server(certificate: Path | None = None, tunnel_to: int = 0) -> Any:
        handler = type("Bound", (Handler,), {"seen": [], "tunnel_to": tunnel_to})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return server.server_address[1], handler.seen  # type: ignore[attr-defined]

    yield start_server
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test", "-addext"]
    files = ["-keyout", str(path), "-out", str(tmp_path / "public.pem")]
    subprocess.run([*command, f"subjectAltName=DNS:{HOST}", *files], check=True, capture_output=True)
    path.write_text(path.read_text() + (tmp_path / "public.pem").read_text())
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "public.pem"))
    return path


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def get(address: tuple[str, int], path: str = "/v1/models", uses_tls: bool = False, **options: Any) -> Any:
    with HttpClient(address, uses_tls=uses_tls, timeout_s=5, **options) as client:
        return client.request(path, {"Authorization": "Bearer k"})


def fetch_models(server: RemoteServer) -> bytes:
    async def fetch() -> bytes:
        client = RemoteClient(server)
        try:
            return await client.fetch("/models", 10_000)
        finally:
            client.close()

    return asyncio.run(fetch())


def build_server(port: int, uses_tls: bool) -> RemoteServer:
    proxy = find_proxy(HOST, port, uses_tls)
    return RemoteServer(uses_tls, HOST, port, "/v1", "m", "k", retries=0, proxy=proxy)


def test_both_clients_tunnel_tls_through_the_proxy(
    start: Start, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream, _ = start(certificate)
    proxy, seen = start(tunnel_to=upstream)
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:p%40ss@127.0.0.1:{proxy}")
    status, body = get((HOST, 443), uses_tls=True)
    assert status == 200 and json.loads(body)["key"] == "Bearer k"
    assert json.loads(fetch_models(build_server(443, True)))["key"] == "Bearer k"
    assert seen == [("CONNECT", f"{HOST}:443", CREDENTIALS)] * 2  # the proxy sees no key


def test_a_refusing_proxy_is_named(start: Start, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, _ = start()
    monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy}")
    with pytest.raises(OSError, match="407"):
        get((HOST, 443), uses_tls=True)
    with pytest.raises(Unreachable, match=r"the proxy 127\.0\.0\.1 refused the connection: .*407"):
        fetch_models(build_server(443, True))


def test_a_proxy_cannot_answer_in_the_servers_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sends in clear after its own answer is not taken for what came through TLS."""
    forged = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{"key": "me"}'
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + forged)
                connection.recv(1 << 16)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(Unreachable):
            fetch_models(build_server(443, True))
        thread.join(10)


def test_both_clients_send_plain_requests_to_the_proxy(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, seen = start()
    monkeypatch.setenv("http_proxy", f"http://user:p%40ss@127.0.0.1:{proxy}")
    assert get((HOST, 8000)).status == 200
    assert json.loads(fetch_models(build_server(8000, False)))["key"] == "Bearer k"
    assert seen == [("GET", f"http://{HOST}:8000/v1/models", CREDENTIALS)] * 2


def test_loopback_and_listed_hosts_need_no_proxy(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", ".internal")
    port, _ = start()
    assert get(("127.0.0.1", port)).status == 200
    assert find_proxy("gpu.internal", 80, False) is None and find_proxy("localhost", 80, False) is None
    assert find_proxy(HOST, 80, True) is None  # HTTP_PROXY is for http
    proxy = find_proxy(HOST, 80, False)
    assert proxy is not None and (proxy.host, proxy.port) == ("127.0.0.1", 1)
    with pytest.raises(OSError):
        get((HOST, port))
    with pytest.raises(OSError):  # resolved here, where nobody knows it
        get((HOST, port), direct=True)


@pytest.mark.parametrize("url", ["socks5://127.0.0.1:1", "http://user:secret@host:port", "http://:80"])
def test_an_invalid_proxy_is_refused_without_its_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(ConfigError, match="HTTPS_PROXY") as error:
        find_proxy(HOST, 443, True)
    assert "secret" not in str(error.value)


def test_redirects_are_not_followed(start: Start) -> None:
    port, seen = start()
    assert get(("127.0.0.1", port), "/moved") == (302, b"")
    assert len(seen) == 1


def test_a_large_or_truncated_response_is_an_error(start: Start) -> None:
    port, _ = start()
    with pytest.raises(http.client.HTTPException, match="more than 8 bytes"):
        get(("127.0.0.1", port), max_bytes=8)
    with pytest.raises(http.client.IncompleteRead):
        get(("127.0.0.1", port), "/truncated")


def test_an_unknown_certificate_is_refused(start: Start, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    port, _ = start(certificate)
    with pytest.raises(ssl.SSLCertVerificationError):
        get(("127.0.0.1", port), uses_tls=True)


def test_one_connection_serves_many_requests(start: Start) -> None:
    port, seen = start()
    with HttpClient(("127.0.0.1", port), uses_tls=False, timeout_s=5) as client:
        assert [client.request("/a", {}).status for _ in range(3)] == [200] * 3
        client.close()
        assert client.request("/a", {}).status == 200
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("host", "expected"), [("localhost", True), ("127.8.0.1", True), ("::1", True), ("10.0.0.1", False), ("a", False)]
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
