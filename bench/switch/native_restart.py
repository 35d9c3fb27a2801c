"""The engine's own server, which can only switch by a kill and a restart."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from bench.server.loadgen import build_chat_body
from bench.server.native_servers import MODEL, NATIVE_SERVERS, NativeLaunch
from bench.server.server_process import BenchServerProcess, find_free_port
from bench.switch.first_token import retry_first_text
from bench.worker_overhead import SETTINGS
from enginebay.config.loader import load_config
from enginebay.engines.cpu_cores import disable_openmp_spinning
from enginebay.fleet.lifecycle.launch_plan import make_launch_plan

_TOKENS = 4
_ROOT = Path(__file__).parents[2]


class NativeRestart:
    """One server at a time, each on its own port, so that none waits for the previous one's port."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._plan = make_launch_plan(MODEL, engine=kind, config=load_config(None), settings=SETTINGS[kind])
        self._directory = Path(tempfile.mkdtemp(prefix="bench-"))
        self._server: BenchServerProcess | None = None

    def start(self) -> None:
        """Warm up: the first start fills the caches."""
        self.switch("Say hi.")

    def switch(self, prompt: str) -> float:
        """Return the seconds from the kill of the running server to the first token of the next one."""
        disable_openmp_spinning()  # as our workers do on few cores; inherited by the server
        port = find_free_port()
        launch: NativeLaunch = NATIVE_SERVERS[self._kind](self._plan, SETTINGS[self._kind], port)
        environment = {"PYTHONPATH": str(_ROOT), **launch.environment}
        body = build_chat_body(launch.model, _TOKENS, True, prompt, temperature=0)
        started = time.perf_counter()
        if self._server is not None:
            self._server.kill()
        server = self._server = BenchServerProcess(
            launch.command, self._directory / "log", (), environment, self._directory
        )
        return retry_first_text(f"http://127.0.0.1:{port}", body, server.check_alive) - started

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        shutil.rmtree(self._directory, ignore_errors=True)
