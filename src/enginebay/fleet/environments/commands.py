"""Running the programs that build an environment: their output in one log, their end tied to ours."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from enginebay.errors import EnginebayError, FetchFailed
from enginebay.fleet.environments.probe import outside_environment

_LAST_LINES = 6
# Started in between, so that the program ends when we are killed: the wish to die with the parent survives an exec.
_TIED = """
import ctypes, os, signal, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
# pip would install elsewhere than into the new environment.
_MISLEADING = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON")


class Commands:
    """One build's programs, run one after the other."""

    def __init__(self, log: Path, lock: TextIO, report: Callable[[str, str], None]) -> None:
        self.path, self.lock, self.report = log, lock, report
        self._log: TextIO | None = None

    def open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._log = self.path.open("w", encoding="utf-8", errors="replace")
        except OSError as error:
            raise EnginebayError(f"{self.path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def run(self, doing: str, command: list[str]) -> None:
        """Run one program, reporting the line it is at. Raises `FetchFailed` with its last lines."""
        self._write(f"$ {shlex.join(command)}\n")
        self.report(doing, "")
        running = self._start(command, subprocess.STDOUT)
        tail: deque[str] = deque(maxlen=_LAST_LINES)
        try:
            for line in running.stdout or ():
                self._write(line)
                if _matters(line):
                    tail.append(line.rstrip())
                    self.report(doing, line.strip())
            code = running.wait()
        except BaseException:
            _end(running)
            raise
        if code != 0:
            raise self._failure(doing, code, list(tail))

    def read(self, command: list[str]) -> list[str]:
        """The lines a program prints; what it complains about goes to the log."""
        self._write(f"$ {shlex.join(command)}\n")
        assert self._log is not None
        running = self._start(command, self._log.fileno())
        try:
            said, _ = running.communicate()
        except BaseException:
            _end(running)
            raise
        if running.returncode != 0:
            raise self._failure(shlex.join(command[1:3]), running.returncode, said.splitlines()[-_LAST_LINES:])
        return [line for line in said.splitlines() if line.strip()]

    def _start(self, command: list[str], errors_to: int) -> subprocess.Popen[str]:
        env = {name: value for name, value in outside_environment().items() if name not in _MISLEADING}
        env |= {"PIP_USER": "0", "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors_to,
            text=True,
            errors="replace",
            env=env,
            pass_fds=(self.lock.fileno(),),
        )

    def _write(self, text: str) -> None:
        assert self._log is not None
        self._log.write(text)
        self._log.flush()

    def _failure(self, doing: str, code: int, tail: list[str]) -> FetchFailed:
        shown = "".join(f"\n     {line}" for line in tail)
        return FetchFailed(
            f"the install failed at: {doing} (exit code {code}){shown}", f"the whole output: {self.path}"
        )


def _matters(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(("WARNING:", "[notice]"))


def _end(running: subprocess.Popen[str]) -> None:
    """Ask as Ctrl-C does, give it a moment to tidy up, then force it."""
    if running.poll() is None:
        running.send_signal(signal.SIGINT)
    limit = time.monotonic() + 3
    while running.poll() is None and time.monotonic() < limit:
        time.sleep(0.05)
    if running.poll() is None:
        running.kill()
        running.wait()
