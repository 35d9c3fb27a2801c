"""SIGTERM, as of `timeout`, a batch system or a container, taken like Ctrl-C: what was started is ended, and how to go on is said."""

from __future__ import annotations

import signal
from types import FrameType

INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # exit codes, as a shell gives them


class Terminated(KeyboardInterrupt):
    """SIGTERM came: the command is to end, even one that goes on after Ctrl-C."""


class Stopping:
    """Heeds both signals from now on, unless a command has its own way with them. For the main thread."""

    def __init__(self) -> None:
        self._terminated = False
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True
        raise Terminated

    def exit_code(self, code: int) -> int:
        """That of a command; Typer makes the same of every interrupt."""
        return _TERMINATED if self._terminated and code == INTERRUPTED else code
