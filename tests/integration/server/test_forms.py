"""Multipart forms over real sockets, through the application, to an endpoint that only this test has."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import pytest

from enginebay.config.sections.server_section import ServerConfig, ServerLimits
from enginebay.server.api import app as app_module
from enginebay.server.api.app import App
from enginebay.server.api.request_dialect import encode_http_refusal
from enginebay.server.auth.api_keys import ApiKey, Keyring, hash_key
from enginebay.server.http.form_parser import FormLimits
from enginebay.server.http.http_settings import HttpSettings
from enginebay.server.http.listener import HttpListener
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.server_context import Route, ServerContext
from enginebay.server.sessions.model_catalog import ModelCatalog
from enginebay.server.supervisor.supervisor import LocalRateLimits
from enginebay.server.telemetry.server_metrics import ServerMetrics
from enginebay.server.telemetry.tracing import Tracer

MB = 1 << 20
MAX_BYTES = 96 * MB


async def echo_form(_: ServerContext, request_context: RequestContext) -> None:
    form = request_context.exchange.form
    assert form is not None
    found: dict[str, Any] = dict(form.fields)
    for name, [file] in form.files.items():
        digest = await asyncio.to_thread(lambda file=file: _digest(file.chunks()))
        found[name] = [file.filename, file.content_type, file.size, digest]
    request_context.exchange.respond(200, json.dumps(found).encode())


def _digest(chunks: Any) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


class FormServer:
    def __init__(self, listener: HttpListener, port: int, folder: Path) -> None:
        self.listener, self.port, self.folder = listener, port, folder
        self.descriptors = len(list(Path("/proc/self/fd").iterdir()))
        self.url = f"http://127.0.0.1:{port}/upload"

    async def send(
        self, data: bytes, *, length: int | None = None, kind: str = "multipart/form-data; boundary=b0und"
    ) -> bytes:
        """Send a body, and read until the server closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"POST /upload HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer the-only-key-here\r\nconnection: close\r\ncontent-type: {kind}\r\n"
        framing = f"content-length: {len(data) if length is None else length}\r\n\r\n"
        writer.write(head.encode() + framing.encode() + data)
        try:
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()

    async def assert_as_before(self) -> None:
        """No bytes are counted, no file is open, and the folder is empty."""
        async with asyncio.timeout(10):
            while self.listener.connections or self.listener._budgets.forms.held or self.listener._budgets.bodies.held:
                await asyncio.sleep(0.05)
            while len(list(Path("/proc/self/fd").iterdir())) > self.descriptors:
                await asyncio.sleep(0.05)
        assert list(self.folder.iterdir()) == []


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FormServer]:
    route = Route("POST", "/upload", echo_form, "upload", body_limit="unread_bytes", takes_form=True)  # any key will do
    monkeypatch.setattr(app_module, "_find_route", lambda *_: route)
    nothing: Any = None
    log: Any = SimpleNamespace(log_request=lambda _: None, log_event=lambda *_, **__: None)
    config = ServerConfig(limits=ServerLimits(unread_bytes=MAX_BYTES))
    context = ServerContext(
        config,
        ModelCatalog([]),
        ServerMetrics(),
        log,
        LocalRateLimits(),
        nothing,
        nothing,
        max_wait_s=1.0,
        routes=(route,),
    )
    app = App(context, Keyring([ApiKey("only", hash_key("the-only-key-here"))]), Tracer(), keyless=False)
    settings = HttpSettings(
        max_body_bytes=MB, max_header_bytes=32 << 10, max_connections=50, header_timeout_s=5, body_timeout_s=1, keep_alive_s=5,
        stall_timeout_s=5, write_buffer_bytes=64 << 10, encode_refusal=encode_http_refusal, find_form_folder=lambda: tmp_path,
        form_limits=FormLimits(max_parts=20), max_form_disk_bytes=100 * MB, max_client_form_disk_bytes=100 * MB,
    )  # fmt: skip
    sock = socket.create_server(("127.0.0.1", 0))
    listener = HttpListener(sock, settings, app)
    listener.start()
    await asyncio.to_thread(lambda: None)  # the executor's thread exists
    yield FormServer(listener, sock.getsockname()[1], tmp_path)
    listener.stop_accepting()
    await app.close()
    await listener.close()


async def test_a_large_file_takes_no_memory(server: FormServer) -> None:
    content = os.urandom(MB)
    digest = _digest([content] * 64)

    async def stream() -> AsyncIterator[bytes]:
        yield b'--b0und\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
        yield b'--b0und\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\ncontent-type: audio/wav\r\n\r\n'
        for _ in range(64):
            yield content
        yield b"\r\n--b0und--\r\n"

    headers = {"authorization": "Bearer the-only-key-here", "content-type": "multipart/form-data; boundary=b0und"}
    tracemalloc.start()
    try:
        async with httpx.AsyncClient(timeout=120) as client:
            answer = await client.post(server.url, content=stream(), headers=headers)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.json() == {"model": ["whisper"], "file": ["a.wav", "audio/wav", 64 * MB, digest]}
    assert peak < 16 * MB, f"{peak / MB:.0f} MiB"
    await server.assert_as_before()


async def test_a_client_library(server: FormServer) -> None:
    async with httpx.AsyncClient(timeout=30, headers={"authorization": "Bearer the-only-key-here"}) as client:
        answer = await client.post(
            server.url, data={"a": "ä", "b": ["1", "2"]}, files={"file": ("ü.txt", b"hello", "text/plain")}
        )
    assert answer.json() == {"a": ["ä"], "b": ["1", "2"], "file": ["ü.txt", "text/plain", 5, _digest([b"hello"])]}
    await server.assert_as_before()


PART = b'--b0und\r\ncontent-disposition: form-data; name="a"; filename="f"\r\n\r\n'


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        pytest.param((PART + b"\r\n") * 100_000, 413, b"server.limits.form_parts", id="many parts"),
        pytest.param(b"--b0und\r\nx: " + b"y" * 8 * MB, 431, b"server.limits.form_header_bytes", id="endless header"),
        pytest.param(
            b"--b0und\r\n" + b"x: y\r\n" * 500_000, 431, b"server.limits.form_header_bytes", id="endless headers"
        ),
        pytest.param(PART + b"x" * 8 * MB, 400, b"closing boundary is missing", id="truncated"),
        pytest.param(PART + b"\r\n--b0undx" * 500_000, 413, b"server.limits.form_parts", id="boundaries that are none"),
        pytest.param(b"\0" * 8 * MB, 400, b"not valid multipart", id="no form"),
        pytest.param(
            PART.replace(b'; filename="f"', b"") + b"x" * 8 * MB,
            413,
            b"server.limits.form_field_bytes",
            id="a long field",
        ),
    ],
)
async def test_bombs(server: FormServer, body: bytes, status: int, says: bytes) -> None:
    answer = await server.send(body)
    assert answer.startswith(b"HTTP/1.1 %d" % status) and says in answer, answer[:500]
    await server.assert_as_before()


async def test_ten_gigabytes_declared(server: FormServer) -> None:
    answer = await server.send(PART, length=10 << 30)
    assert answer.startswith(b"HTTP/1.1 413") and b"server.limits.unread_bytes" in answer
    await server.assert_as_before()


async def test_no_boundary(server: FormServer) -> None:
    assert (await server.send(PART, kind="multipart/form-data")).startswith(b"HTTP/1.1 400")
    await server.assert_as_before()


async def test_a_slow_drip(server: FormServer) -> None:
    answer = await server.send(PART + b"x" * 200_000, length=MB)
    assert answer.startswith(b"HTTP/1.1 408") and b"server.limits.body_timeout_s" in answer
    await server.assert_as_before()


async def test_clients_that_leave(server: FormServer) -> None:
    for size in (0, 100_000, 3 * MB):
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            head = b"POST /upload HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer the-only-key-here\r\n"
            kind = b"content-type: multipart/form-data; boundary=b0und\r\ncontent-length: %d\r\n\r\n" % (50 * MB)
            writer.write(head + kind + PART + b"x" * size)
            await writer.drain()
            writer.transport.abort()
    await server.assert_as_before()
