"""The first signal asks the server to finish, the second ends it; SIGHUP has it read its configuration anew."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable


class StopSignal:
    """`asked` is done at the first SIGTERM or SIGINT; the second ends the process at once.

    Workers do not outlive us even then: each has a guard that ends it when we are gone.
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
    """SIGHUP, from here on. Until somebody listens it is noted: it must not end a server that still loads its models."""

    def __init__(self) -> None:
        self._pending = False
        signal.signal(signal.SIGHUP, self._on_early_signal)

    def _on_early_signal(self, *_: object) -> None:
        self._pending = True

    def subscribe(self, callback: Callable[[], object]) -> None:
        """At each from now on; at once, if any came before."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, callback)
        if self._pending:
            callback()
