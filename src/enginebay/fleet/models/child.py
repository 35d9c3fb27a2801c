"""Run a helper program that must not outlive us."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_POLL_S = 0.2


def run_child(command: Sequence[str], environment: Mapping[str, str], log: Path, meanwhile: Callable[[], None]) -> int:
    """Run `command` with its output in `log`; gives back its exit code. Calls `meanwhile` every now and then.

    It runs in a group of its own, so that all of it ends when we are interrupted.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S)
            meanwhile()
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
