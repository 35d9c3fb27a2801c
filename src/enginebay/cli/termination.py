"""SIGTERM, as of `timeout`, a batch system or a container, taken like Ctrl-C: what was started is ended, and how to go on is said."""

from __future__ import annotations

import signal
from types import FrameType

EXIT_INTERRUPTED, _EXIT_TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # exit codes, as a shell gives them


class Terminated(KeyboardInterrupt):
    """SIGTERM came: the command is to end, even one that goes on after Ctrl-C."""


class TerminationHandler:
    """For the main thread. A command may have its own way with both signals."""

    def __init__(self) -> None:
        self._terminated = False

    def install(self) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, self._handle_sigterm)

    def _handle_sigterm(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True
        of_ctrl_c = signal.getsignal(signal.SIGINT)
        if callable(of_ctrl_c) and of_ctrl_c is not signal.default_int_handler:
            of_ctrl_c(number, frame)  # a loop that runs has one, which cancels what runs in it
        else:
            raise Terminated

    def exit_code(self, code: int) -> int:
        """That of a command; Typer makes the same of every interrupt."""
        return _EXIT_TERMINATED if self._terminated and code == EXIT_INTERRUPTED else code

    def restore(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
