"""Runs a program in the foreground: same terminal, its exit status, signals passed on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import FrameType

from enginebay.errors import EnginebayError

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_in_foreground(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run the program and return its exit status as a shell reports it."""
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        # A key press reaches the whole foreground group, so the program has that signal already.
        if number in (signal.SIGINT, signal.SIGQUIT) and _owns_terminal():
            return
        if process is None:
            early.append(number)
        elif process.poll() is None:
            process.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in _FORWARDED}  # a new program starts with defaults
    try:
        process = _start(command, env)
        for number in early:
            process.send_signal(number)
        status = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return 128 - status if status < 0 else status


def _start(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=env)
    except OSError as error:
        raise EnginebayError(f"{command[0]} cannot be run: {error.strerror}", "reinstall it") from None


def _owns_terminal() -> bool:
    """Return whether this process group is in the foreground of a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
