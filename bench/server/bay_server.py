"""`bay serve` under test: with an API key, server and engine process pinned to given cores."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bench.server.loadgen import build_chat_body
from bench.server.server_process import BenchServerProcess, find_free_port, list_descendants, pin_to_cores

_BAY = Path(sys.executable).with_name("bay")
_WORKER = b"enginebay/worker/bootstrap.py"


class BayServer:
    """A `bay serve` process. `engine_cores` empty: the engine process shares the server's `cores`."""

    def __init__(
        self,
        name: str,
        model: str,
        engine: str,
        settings: Mapping[str, Any],
        cores: Collection[int] = (),
        engine_cores: Collection[int] = (),
        options: Collection[str] = (),
    ) -> None:
        self.name = name
        self.model = model
        self.ends_with_done = True
        self._key = secrets.token_hex(16)
        self.headers: Mapping[str, str] = {"Authorization": f"Bearer {self._key}"}
        self._engine = engine
        self._settings = settings
        self._cores = cores
        self._engine_cores = engine_cores
        self._options = options
        self._server: BenchServerProcess | None = None
        self._directory: Path | None = None

    def start(self) -> str:
        """Start and return the URL once it answers."""
        port = find_free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="bench-"))
        command = [str(_BAY), "serve", self.model, "--engine", self._engine, "--port", str(port)]
        command += ["--log-level", "warning", *self._options]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        environment = {"ENGINEBAY_API_KEY": self._key}
        self._server = BenchServerProcess(command, self._directory / "log", self._cores, environment, self._directory)
        url = f"http://127.0.0.1:{port}"
        self._server.wait_ready(url, build_chat_body(self.model, 8, False), self.headers, timeout_s=300)
        if self._engine_cores:
            for pid in _find_workers(self._server.pid):
                pin_to_cores(pid, self._engine_cores)
        return url

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def _find_workers(pid: int) -> list[int]:
    """Return the PIDs of a server's engine processes."""
    workers = [child for child in list_descendants(pid) if _WORKER in Path(f"/proc/{child}/cmdline").read_bytes()]
    if not workers:
        raise SystemExit("the server has no engine process")
    return workers
