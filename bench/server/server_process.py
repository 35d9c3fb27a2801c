"""Server processes: start them on given cores, wait until they answer, stop them with all their children."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

_STOP_TIMEOUT_S = 20.0


def exit_on_sigterm() -> None:
    """Exit on SIGTERM as on Ctrl-C, so that started servers are stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def list_descendants(pid: int) -> list[int]:
    """Return the PIDs of all descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The name in brackets may contain anything; the parent is the second field after it.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    descendants, pending = [], [pid]
    while pending:
        started = children.get(pending.pop(), [])
        descendants += started
        pending += started
    return descendants


def pin_to_cores(pid: int, cores: Collection[int]) -> None:
    """Pin every thread of a process."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def post_json(url: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float = 30.0) -> Any:
    """Post JSON and return the response. Raise OSError unless the status is 200."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json", **headers}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return json.load(response)


class BenchServerProcess:
    """A server process in its own session, so that none of its children outlives the measurement."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        cores: Collection[int] = (),
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*_build_taskset(cores), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
                cwd=directory,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(
        self, url: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float = 120.0
    ) -> None:
        """Wait until a chat request is answered."""
        deadline = time.monotonic() + timeout_s
        while True:
            problem: Exception
            try:
                post_json(f"{url}/v1/chat/completions", body, headers)
                return
            except (OSError, ValueError) as error:
                problem = error
            if time.monotonic() > deadline:
                self.stop()
                raise SystemExit(self._describe_failure(problem))
            self.check_alive(problem)
            time.sleep(0.2)

    def check_alive(self, problem: Exception | None = None) -> None:
        """Raise `SystemExit` with the end of its log if it has exited."""
        if self._process.poll() is not None:
            self.stop()
            raise SystemExit(self._describe_failure(problem))

    def _describe_failure(self, problem: Exception | None) -> str:
        tail = self._log.read_text(errors="replace")[-2000:]
        return f"{self._process.args!r} does not answer ({problem or 'it exited'}); its log ends with:\n{tail}"

    def kill(self) -> None:
        """Send SIGKILL to its whole session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL to what is left of its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_TIMEOUT_S)
        deadline = time.monotonic() + _STOP_TIMEOUT_S / 4
        while time.monotonic() < deadline:
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                break
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def _build_taskset(cores: Collection[int]) -> list[str]:
    """Return a taskset prefix: the server sees its cores from the start and sizes its threads for them."""
    return ["taskset", "-c", ",".join(map(str, sorted(cores)))] if cores else []
