"""The engine's own server, switched the way it can be: killed, and started again."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from bench.server.client import chat
from bench.server.own_servers import MODEL, OWN, Launch
from bench.server.processes import Server, free_port
from bench.switch.first_token import ask_until_answered
from bench.worker import SETTINGS
from enginebay.config.load import load_config
from enginebay.engines.cores import let_threads_sleep
from enginebay.fleet.plan import make_plan

_TOKENS = 4
_ROOT = Path(__file__).parents[2]


class Bare:
    """One server at a time, each on a port of its own, so that none waits for what the last one held."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._plan = make_plan(MODEL, engine=kind, config=load_config(None), settings=SETTINGS[kind])
        self._directory = Path(tempfile.mkdtemp(prefix="bench-"))
        self._server: Server | None = None

    def start(self) -> None:
        """Not measured: the first one fills the caches."""
        self.switch("Say hi.")

    def switch(self, prompt: str) -> float:
        """Seconds from the kill of the running server to the first token of the next one."""
        let_threads_sleep()  # ours do, where cores are few; set here, it is passed on
        port = free_port()
        launch: Launch = OWN[self._kind](self._plan, SETTINGS[self._kind], port)
        environment = {"PYTHONPATH": str(_ROOT), **launch.environment}
        body = chat(launch.model, _TOKENS, True, prompt, temperature=0)
        started = time.perf_counter()
        if self._server is not None:
            self._server.kill()
        server = self._server = Server(launch.command, self._directory / "log", (), environment, self._directory)
        return ask_until_answered(f"http://127.0.0.1:{port}", body, server.check_alive) - started

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        shutil.rmtree(self._directory, ignore_errors=True)
