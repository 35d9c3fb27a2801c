"""What is measured on a GPU: the engine without a server, its own server, and ours. All may be up at once; one is under load."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from enginebay import environments
from enginebay.lab.loadgen.calibration import default_process_count
from enginebay.lab.loadgen.sender_pool import LoadgenResult, run_loadgen
from enginebay.lab.loadgen.sender_task import TargetServer, split_into_tasks
from enginebay.lab.workload.request_records import Request

_BAY = (sys.executable, "-c", "from enginebay.cli.main import run; run()")
_START_S = 420.0
_NOT_OURS = ("kv_cache_memory_bytes",)  # vLLM's own names, for what our settings have no name for


@cache
def find_vllm_python() -> str:
    """The one that `bay serve` would run vLLM with, so that all have the same vLLM."""
    return str(environments.find_environment("vllm").python)


class SystemUnderTest:
    """A process that answers. `settings` are vLLM's engine arguments, the same for all."""

    def __init__(self, name: str, model: Path, settings: Mapping[str, Any], folder: Path) -> None:
        self.name, self.model, self.settings = name, model, settings
        self.log = folder / f"{name.replace(' ', '-').replace('=', '-')}.log"
        self.started_s = 0.0
        self._began = monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.build_command(), stdin=subprocess.PIPE, stdout=self.out(), stderr=log, start_new_session=True,
                env={**os.environ, **self.environment()},
            )  # fmt: skip

    def build_command(self) -> Sequence[str]:
        raise NotImplementedError

    def out(self) -> int | None:
        return subprocess.DEVNULL

    def environment(self) -> Mapping[str, str]:
        return {}

    def is_ready(self) -> bool:
        raise NotImplementedError

    def wait_ready(self) -> None:
        """Until it answers. Raises `SystemExit` with its last words."""
        while not self.is_ready():
            if self.process.poll() is not None or monotonic() - self._began > _START_S:
                raise SystemExit(f"{self.name} did not start:\n{self.read_log_tail()}")
            sleep(0.2)
        self.started_s = monotonic() - self._began

    def read_log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class OfflineVllm(SystemUnderTest):
    """`LLM` in a process of its own."""

    death_error: type[BaseException] = SystemExit  # raised when it has

    def build_command(self) -> Sequence[str]:
        arguments = {"model": str(self.model), "disable_log_stats": True, **self.settings}
        return [find_vllm_python(), "-m", "bench.gpu.offline_vllm", json.dumps(arguments)]

    def out(self) -> int | None:
        return subprocess.PIPE

    def is_ready(self) -> bool:
        assert self.process.stdout is not None
        said, _, _ = select.select([self.process.stdout], [], [], 0)
        return bool(said) and bool(self.process.stdout.readline())

    def run(self, requests: Sequence[Request], tokens: int, streams: int) -> Mapping[str, float]:
        return self.send_command(
            {"prompts": [request.prompt for request in requests], "tokens": tokens, "streams": streams}
        )

    def send_command(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """What it answers. Raises `died` with its last words."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):  # it is gone already, and so has no answer
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer.endswith(b"\n"):
            raise self.death_error(f"{self.name} died of {', '.join(order)}:\n{self.read_log_tail()}")
        return dict(json.loads(answer))


class ServerSystem(SystemUnderTest):
    """A server that speaks OpenAI's API."""

    def __init__(self, name: str, model: Path, settings: Mapping[str, Any], folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        super().__init__(name, model, settings, folder)

    @property
    def target(self) -> TargetServer:
        return TargetServer(f"http://127.0.0.1:{self.port}", self.model.name, self.headers(), {"temperature": 0})

    def headers(self) -> Mapping[str, str]:
        return {}

    def is_ready(self) -> bool:
        return _is_healthy(f"http://127.0.0.1:{self.port}{self.health()}")

    def health(self) -> str:
        return "/health"

    def run_requests(
        self, requests: Sequence[Request], streams: int, times: Sequence[float] | None = None
    ) -> LoadgenResult:
        fired = run_loadgen(split_into_tasks(self.target, requests, times, streams, default_process_count()), requests)
        wrong = [record for record in fired.records if record.error]
        if wrong:
            raise SystemExit(f"{self.name}: {len(wrong)} requests failed: {wrong[0].error} {wrong[0].detail}")
        return fired


class VllmServe(ServerSystem):
    """`vllm serve`; "-N" at the end of the name: with N API servers."""

    def build_command(self) -> Sequence[str]:
        command = [
            find_vllm_python(), "-m", "vllm.entrypoints.cli.main", "serve", str(self.model),
            "--served-model-name", self.model.name, "--host", "127.0.0.1", "--port", str(self.port),
            "--disable-uvicorn-access-log",
        ]  # fmt: skip
        for name, value in self.settings.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        count = self.name.rpartition("-")[2]
        return [*command, "--api-server-count", count] if count.isdigit() else command


class BayServe(ServerSystem):
    """`bay serve` with the vllm engine, as it comes; "ours NAME=VALUE ...": with these settings of the engine."""

    def build_command(self) -> Sequence[str]:
        config = self.log.with_suffix(".json")
        model = {"source": str(self.model), "engine": "vllm", "load": "start"}
        extra = {name: value for name, value in self.settings.items() if name in _NOT_OURS}
        own = {name: value for name, value in self.settings.items() if name not in _NOT_OURS}
        own |= dict(one.split("=", 1) for one in self.name.split()[1:])
        config.write_text(json.dumps({"models": {self.model.name: model}, "vllm": {**own, "extra": extra}}))
        return [*_BAY, "serve", "--config", str(config), "--port", str(self.port), "--log-level", "warning"]

    def health(self) -> str:
        return "/health/ready"


def start_system(name: str, model: Path, settings: Mapping[str, Any], folder: Path) -> SystemUnderTest:
    """offline, ours, ours mixed_graphs=off, vllm serve, vllm serve-4, ..."""
    kind = next((kind for kind in _KINDS if name.startswith(kind)), None)
    if kind is None:
        raise SystemExit(f"there is no system {name}: one of {', '.join(_KINDS)}")
    return _KINDS[kind](name, model, settings, folder)


_KINDS: Mapping[str, type[SystemUnderTest]] = {"offline": OfflineVllm, "ours": BayServe, "vllm serve": VllmServe}


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
