"""Servers as processes: started on given cores, waited for, and ended with all that they started."""

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
    """End as by Ctrl-C: with the servers that were started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def find_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def list_descendants(pid: int) -> list[int]:
    """Processes that a process started, and those they started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The name in brackets may hold anything; the parent is the second field after it.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        started = children.get(waiting.pop(), [])
        found += started
        waiting += started
    return found


def pin_to_cores(pid: int, cores: Collection[int]) -> None:
    """Move every thread of a process."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def post_json(url: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float = 30.0) -> Any:
    """One JSON request. Raises OSError when it is not answered with 200."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json", **headers}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return json.load(answer)


class BenchServerProcess:
    """A server's process, in a session of its own, so that nothing of it outlives the measurement."""

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
        """Until a chat request is answered."""
        deadline = time.monotonic() + timeout_s
        while True:
            problem: Exception
            try:
                post_json(f"{url}/v1/chat/completions", body, headers)
                return
            except (OSError, ValueError) as found:
                problem = found
            if time.monotonic() > deadline:
                self.stop()
                raise SystemExit(self._describe_failure(problem))
            self.check_alive(problem)
            time.sleep(0.2)

    def check_alive(self, problem: Exception | None = None) -> None:
        """Raises `SystemExit` with its last words when it has ended."""
        if self._process.poll() is not None:
            self.stop()
            raise SystemExit(self._describe_failure(problem))

    def _describe_failure(self, problem: Exception | None) -> str:
        tail = self._log.read_text(errors="replace")[-2000:]
        return f"{self._process.args!r} does not answer ({problem or 'it has ended'}); its log ends with:\n{tail}"

    def kill(self) -> None:
        """SIGKILL to its whole session, without a word before."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to what is left of its session."""
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
    """taskset, so that the server sees its cores from the start and sizes its threads for them."""
    return ["taskset", "-c", ",".join(map(str, sorted(cores)))] if cores else []
