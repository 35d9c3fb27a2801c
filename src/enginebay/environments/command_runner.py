"""Runs the commands of an environment build, with all output in one log. They die with this process."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TextIO

from enginebay.errors import EnginebayError, FetchFailed
from enginebay.util.child_processes import child_process, isolated_environment
from enginebay.util.paths import open_log_file

_TAIL_LINES = 6
# These make pip install outside the new environment.
_PIP_LOCATION_VARIABLES = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON")


class CommandRunner:
    """Runs the commands of one build, one after the other."""

    def __init__(self, log: Path, lock: TextIO, report: Callable[[str, str], None]) -> None:
        self.path, self.lock, self.report = log, lock, report
        self._log: TextIO | None = None

    def open(self) -> None:
        try:
            self._log = os.fdopen(open_log_file(self.path, append=False), "w", encoding="utf-8", errors="replace")
        except OSError as error:
            raise EnginebayError(f"{self.path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def run(self, doing: str, command: list[str]) -> None:
        """Run one command and report each output line. Raises `FetchFailed` with the last lines."""
        self._write(f"$ {shlex.join(command)}\n")
        self.report(doing, "")
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        with self._start(command, subprocess.STDOUT) as process:
            for line in process.stdout or ():
                self._write(line)
                if _is_relevant(line):
                    tail.append(line.rstrip())
                    self.report(doing, line.strip())
        if process.returncode != 0:
            raise self._build_failure(doing, process.returncode, list(tail))

    def read_lines(self, command: list[str]) -> list[str]:
        """Run a command and return the lines of its stdout. Its stderr goes to the log."""
        self._write(f"$ {shlex.join(command)}\n")
        assert self._log is not None
        with self._start(command, self._log.fileno()) as process:
            output, _ = process.communicate()
        if process.returncode != 0:
            raise self._build_failure(shlex.join(command[1:3]), process.returncode, output.splitlines()[-_TAIL_LINES:])
        return [line for line in output.splitlines() if line.strip()]

    def _start(self, command: list[str], errors_to: int) -> AbstractContextManager[subprocess.Popen[str]]:
        env = {name: value for name, value in isolated_environment().items() if name not in _PIP_LOCATION_VARIABLES}
        env |= {"PIP_USER": "0", "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
        return child_process(command, env, stderr=errors_to, pass_fds=(self.lock.fileno(),))

    def _write(self, text: str) -> None:
        assert self._log is not None
        self._log.write(text)
        self._log.flush()

    def _build_failure(self, doing: str, code: int, tail: list[str]) -> FetchFailed:
        shown = "".join(f"\n     {line}" for line in tail)
        return FetchFailed(
            f"the install failed at: {doing} (exit code {code}){shown}", f"see the full log: {self.path}"
        )


def _is_relevant(line: str) -> bool:
    """Return whether to show a line. Resolver errors are noise: recipes drop packages on purpose, and pip continues."""
    noise = ("WARNING:", "[notice]", "ERROR: pip's dependency resolver does not")
    return bool(line.strip()) and not line.startswith(noise)
