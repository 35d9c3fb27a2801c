"""SIGTERM handling. As with Ctrl-C, a command cleans up and says how to resume."""

from __future__ import annotations

import signal
from types import FrameType

EXIT_INTERRUPTED, _EXIT_TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # as shells report them


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. Ends even a command that survives Ctrl-C."""


class TerminationHandler:
    """Turns SIGTERM into an interrupt. Main thread only; a command may replace both handlers."""

    def __init__(self) -> None:
        self._terminated = False

    def install(self) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, self._handle_sigterm)

    def _handle_sigterm(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True
        sigint_handler = signal.getsignal(signal.SIGINT)
        if callable(sigint_handler) and sigint_handler is not signal.default_int_handler:
            sigint_handler(number, frame)  # asyncio's, which cancels the running task
        else:
            raise Terminated

    def exit_code(self, code: int) -> int:
        """Return the exit code. Typer reports the same one for every interrupt."""
        return _EXIT_TERMINATED if self._terminated and code == EXIT_INTERRUPTED else code

    def restore(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
