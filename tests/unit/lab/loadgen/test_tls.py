"""The load generator over TLS: a trusted server is measured, an untrusted one is an error with the reason."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from enginebay.lab.loadgen.calibration_server import build_stream_writes
from enginebay.lab.loadgen.sender import RequestSender
from enginebay.lab.loadgen.sender_pool import LoadgenFailed, run_loadgen
from enginebay.lab.loadgen.sender_task import RequestOutcome, TargetServer, split_into_tasks
from enginebay.lab.study.server_api import ServerUnusable, request_json
from enginebay.lab.workload.request_records import Request
from tests.unit.lab.loadgen.test_sender import read_request

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificates, and is not here"
)

GAP_S = 0.05
TOKENS = 4
_CERTIFICATE = """
[req]
prompt = no
distinguished_name = name
x509_extensions = extensions
[name]
CN = enginebay test
[extensions]
basicConstraints = critical, CA:TRUE
keyUsage = critical, digitalSignature, keyCertSign
subjectKeyIdentifier = hash
subjectAltName = {names}
"""


def make_certificate(folder: Path, names: str) -> Path:
    """One that signs itself, key and all in one file."""
    (folder / "openssl.cnf").write_text(_CERTIFICATE.format(names=names))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-config", "openssl.cnf",
               "-keyout", "key.pem", "-out", "certificate.pem"]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes((folder / "certificate.pem").read_bytes() + (folder / "key.pem").read_bytes())
    return both


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("ours"), "IP:127.0.0.1")


@contextmanager
def tls_server(certificate: Path) -> Iterator[str]:
    """Streams each answer token by token; a thread for each connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(plain: socket.socket) -> None:
        try:
            with context.wrap_socket(plain, server_side=True) as sock:
                while read_request(sock):
                    for piece in build_stream_writes(TOKENS):
                        sock.sendall(piece)
                        sleep(GAP_S)
        except OSError:
            plain.close()

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(sock,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def send(url: str, count: int = 3) -> list[RequestOutcome]:
    """Send without connecting first, as after a server restart in the middle of a run."""
    tasks = split_into_tasks(
        TargetServer(url, "m", timeout_s=30.0), [Request("hello", None, TOKENS)] * count, None, 1, 1
    )
    return RequestSender(tasks[0]).run(monotonic())


@pytest.mark.parametrize("times", [None, [0.01 * number for number in range(6)]], ids=["closed loop", "open loop"])
def test_a_trusted_server_is_measured(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, times: list[float] | None
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    requests = [Request("hello", None, TOKENS)] * 6
    with tls_server(certificate) as url:
        result = run_loadgen(split_into_tasks(TargetServer(url, "m", timeout_s=20.0), requests, times, 2, 1), requests)
    assert [(record.error, record.detail) for record in result.records] == [(None, "")] * 6
    assert [record.output_tokens for record in result.records] == [TOKENS] * 6
    for record in result.records:
        arrivals = result.tokens[record.index]
        assert len(arrivals) == TOKENS
        assert arrivals[-1] - record.sent_s >= (TOKENS - 1) * GAP_S
        assert arrivals[0] < arrivals[-1]  # each stamped when it came, not with the last


def test_a_large_prompt_is_sent_whole(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    requests = [Request("x" * (4 << 20), None, TOKENS)]
    with tls_server(certificate) as url:
        result = run_loadgen(split_into_tasks(TargetServer(url, "m", timeout_s=60.0), requests, None, 1, 1), requests)
    assert [(record.error, record.detail) for record in result.records] == [(None, "")]


def test_an_untrusted_server_is_reported(certificate: Path) -> None:
    with tls_server(certificate) as url:
        outcomes = send(url)
        with pytest.raises(ServerUnusable, match=r"certificate of .* is not trusted: self.signed") as refused:
            request_json(TargetServer(url, "m"), "/v1/models")
    assert [outcome.error for outcome in outcomes] == ["connect"] * 3
    assert all(not outcome.arrivals and outcome.output_tokens is None for outcome in outcomes)
    for outcome in outcomes:
        assert outcome.detail.startswith("the server's certificate is not trusted: self")
        assert "SSL_CERT_FILE" in outcome.detail
    assert "SSL_CERT_FILE" in refused.value.hint


def test_an_untrusted_server_fails_before_the_run_starts(certificate: Path) -> None:
    requests = [Request("hello", None, TOKENS)]
    with tls_server(certificate) as url, pytest.raises(LoadgenFailed, match="certificate is not trusted"):
        run_loadgen(split_into_tasks(TargetServer(url, "m", timeout_s=20.0), requests, None, 1, 1), requests)


def test_a_certificate_of_another_name_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path, "DNS:example.org")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    requests = [Request("hello", None, TOKENS)]
    with tls_server(certificate) as url, pytest.raises(LoadgenFailed, match="IP address mismatch"):
        run_loadgen(split_into_tasks(TargetServer(url, "m", timeout_s=20.0), requests, None, 1, 1), requests)


def test_a_server_without_tls_is_no_connection() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(1 << 16)
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    thread = threading.Thread(target=refuse, daemon=True)
    thread.start()
    (outcome,) = send(f"https://127.0.0.1:{listener.getsockname()[1]}", count=1)
    thread.join(5)
    listener.close()
    assert outcome.error == "connect" and "SSL" in outcome.detail
