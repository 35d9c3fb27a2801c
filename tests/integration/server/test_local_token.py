"""A server without keys: /admin wants the token in the runtime folder, which `bay` finds."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.integration.server.bay_process import run_server
from tests.integration.server.fake_requests import ask


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        (Path(folder) / "run").mkdir(mode=0o700)
        yield {"XDG_RUNTIME_DIR": f"{folder}/run", "ENGINEBAY_HOME": f"{folder}/home"}


def run_bay(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enginebay.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environ})


@pytest.mark.parametrize("workers", [1, 2])
def test_admin_without_keys_needs_the_token(environ: dict[str, str], workers: int) -> None:
    config: dict[str, object] = {"models": {"toy": {"engine": "fake"}}, "server": {"workers": workers}}
    folder = Path(environ["XDG_RUNTIME_DIR"]) / "enginebay"
    with run_server(config=config, environ=environ) as server:
        [token] = folder.glob("*.token")
        assert stat.S_IMODE(token.stat().st_mode) == 0o600 and len(token.read_text()) > 40
        for _ in range(4):  # whichever process answers
            refused = httpx.get(f"{server.url}/admin/ps", timeout=60)
            assert refused.status_code == 403 and "bay keys token" in refused.json()["error"]["message"]
            assert httpx.get(f"{server.url}/admin/ps", headers=server.admin_headers, timeout=60).status_code == 200
        assert ask(server).status == 200
        assert httpx.get(f"{server.url}/metrics", timeout=60).status_code == 200
        assert httpx.get(f"{server.url}/health", timeout=60).json() == {"status": "ready", "models": ["toy"]}
        for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
            listed = run_bay(environ, "ps", "--url", url)
            assert listed.returncode == 0 and "toy" in listed.stdout, listed.stderr
        printed = run_bay(environ, "keys", "token", "--url", server.url)
        assert printed.stdout.strip() == token.read_text()
        with tempfile.TemporaryDirectory(dir="/tmp") as other:  # as another user
            stranger = {"XDG_RUNTIME_DIR": other, "ENGINEBAY_HOME": other, "TMPDIR": other}
            denied = run_bay(stranger, "ps", "--url", server.url)
        assert denied.returncode == 1 and "access denied (403)" in denied.stderr
    assert not list(folder.glob("*.token"))


def test_each_start_has_another_token_and_removes_those_of_killed_servers(environ: dict[str, str]) -> None:
    folder = Path(environ["XDG_RUNTIME_DIR"]) / "enginebay"
    with run_server("toy", engine="fake", environ=environ, exit_code=-9) as server:
        first = server.admin_headers
        server.process.kill()
        server.process.wait()
    assert len(list(folder.glob("*.token"))) == 1
    with run_server("toy", engine="fake", environ=environ) as server:
        assert len(list(folder.glob("*.token"))) == 1 and server.admin_headers != first
        assert httpx.get(f"{server.url}/admin/ps", headers=first, timeout=60).status_code == 403
