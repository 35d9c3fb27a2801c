"""A program that an event loop can wait for, started without a line of Python between fork and exec.

uvloop's own way runs Python and every hook around fork() in the child. In a process with threads that can hang on a lock
that another thread held, and the event loop, which waits for the child to become its program, hangs with it.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO


class ChildProcess:
    """In a session of its own, with its output in a log. To be started on an event loop."""

    def __init__(self, arguments: Sequence[str], log: BinaryIO, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
        )
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._watcher = threading.Thread(target=self._wait_in_thread, name=f"child-{self.pid}", daemon=True)
        try:
            self._watcher.start()
        except RuntimeError:  # the system allows no more threads
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        await self._ended.wait()
        assert self._process.returncode is not None
        return self._process.returncode

    def _wait_in_thread(self) -> None:
        self._process.wait()
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._ended.set)
