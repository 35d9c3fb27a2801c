"""The systems measured on a GPU: vLLM without a server, `vllm serve`, and `bay serve`. All may be up; one is under load."""

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
_EXTRA_SETTINGS = ("kv_cache_memory_bytes",)  # vLLM arguments without a setting of the same name: passed as `extra`


@cache
def find_vllm_python() -> str:
    """Return the Python that `bay serve` runs vLLM with, so that all systems have the same vLLM."""
    return str(environments.find_environment("vllm").python)


class SystemUnderTest:
    """A process to measure. `settings` are vLLM engine arguments, the same for all systems."""

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
        """Wait until it answers. Raise `SystemExit` with the end of its log if it does not start."""
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
    """`vllm.LLM` in its own process."""

    death_error: type[BaseException] = SystemExit

    def build_command(self) -> Sequence[str]:
        arguments = {"model": str(self.model), "disable_log_stats": True, **self.settings}
        return [find_vllm_python(), "-m", "bench.gpu.offline_vllm", json.dumps(arguments)]

    def out(self) -> int | None:
        return subprocess.PIPE

    def is_ready(self) -> bool:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], 0)
        return bool(readable) and bool(self.process.stdout.readline())

    def run(self, requests: Sequence[Request], tokens: int, streams: int) -> Mapping[str, float]:
        return self.send_command(
            {"prompts": [request.prompt for request in requests], "tokens": tokens, "streams": streams}
        )

    def send_command(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a command and return the reply. Raise `death_error` with the end of the log if the process died."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):  # already dead: reading the reply reports it
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        reply = self.process.stdout.readline()
        if not reply.endswith(b"\n"):
            raise self.death_error(f"{self.name} died during {', '.join(command)}:\n{self.read_log_tail()}")
        return dict(json.loads(reply))


class ServerSystem(SystemUnderTest):
    """An OpenAI-compatible server."""

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
        result = run_loadgen(split_into_tasks(self.target, requests, times, streams, default_process_count()), requests)
        failed = [record for record in result.records if record.error]
        if failed:
            raise SystemExit(f"{self.name}: {len(failed)} requests failed: {failed[0].error} {failed[0].detail}")
        return result


class VllmServe(ServerSystem):
    """`vllm serve`; a name that ends in "-N" starts N API servers."""

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
    """`bay serve` with the vllm engine and its defaults; "ours NAME=VALUE ..." sets engine settings."""

    def build_command(self) -> Sequence[str]:
        config = self.log.with_suffix(".json")
        model = {"source": str(self.model), "engine": "vllm", "load": "start"}
        extra = {name: value for name, value in self.settings.items() if name in _EXTRA_SETTINGS}
        vllm = {name: value for name, value in self.settings.items() if name not in _EXTRA_SETTINGS}
        vllm |= dict(setting.split("=", 1) for setting in self.name.split()[1:])
        config.write_text(json.dumps({"models": {self.model.name: model}, "vllm": {**vllm, "extra": extra}}))
        return [*_BAY, "serve", "--config", str(config), "--port", str(self.port), "--log-level", "warning"]

    def health(self) -> str:
        return "/health/ready"


def start_system(name: str, model: Path, settings: Mapping[str, Any], folder: Path) -> SystemUnderTest:
    """Start a system by name: offline, ours, ours mixed_graphs=off, vllm serve, vllm serve-4, ..."""
    kind = next((kind for kind in _KINDS if name.startswith(kind)), None)
    if kind is None:
        raise SystemExit(f"unknown system {name!r}: choose one of {', '.join(_KINDS)}")
    return _KINDS[kind](name, model, settings, folder)


_KINDS: Mapping[str, type[SystemUnderTest]] = {"offline": OfflineVllm, "ours": BayServe, "vllm serve": VllmServe}


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False
