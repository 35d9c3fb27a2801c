"""Signals: the first SIGTERM or SIGINT drains the server, the second kills it; SIGHUP reloads the configuration."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable


class StopSignal:
    """Completes `requested` at the first SIGTERM or SIGINT; the second exits the process at once.

    Workers do not outlive it even then: each has a guard that stops it when its parent exits.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.requested: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self.requested.done():
            os._exit(130)
        self.requested.set_result(None)


class ReloadSignal:
    """Handles SIGHUP. It is remembered until `subscribe`: it must not kill a server that is still loading models."""

    def __init__(self) -> None:
        self._pending = False
        signal.signal(signal.SIGHUP, self._on_early_signal)

    def _on_early_signal(self, *_: object) -> None:
        self._pending = True

    def subscribe(self, callback: Callable[[], object]) -> None:
        """Call `callback` on each SIGHUP from now on, and at once if one came before."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, callback)
        if self._pending:
            callback()
