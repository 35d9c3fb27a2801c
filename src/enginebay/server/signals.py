"""The first signal asks the server to finish, the second ends it; SIGHUP has it read its configuration anew."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable


class Stop:
    """`asked` is done at the first SIGTERM or SIGINT; the second ends the process at once.

    Workers do not outlive us even then: each has a guard that ends it when we are gone.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        if self.asked.done():
            os._exit(130)
        self.asked.set_result(None)


class Hangups:
    """SIGHUP, from here on. Until somebody listens it is noted: it must not end a server that still loads its models."""

    def __init__(self) -> None:
        self._noted = False
        signal.signal(signal.SIGHUP, self._note)

    def _note(self, *_: object) -> None:
        self._noted = True

    def listen(self, call: Callable[[], object]) -> None:
        """At each from now on; at once, if any came before."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, call)
        if self._noted:
            call()
