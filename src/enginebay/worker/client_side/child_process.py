"""A child process that an event loop can wait for, started without running Python between fork and exec.

uvloop's subprocess runs Python and all fork hooks in the child. In a process with threads that can deadlock on a lock
another thread held, and the event loop, which waits for the exec, hangs with it.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO


class ChildProcess:
    """Runs in its own session with its output in a log. Create it on a running event loop."""

    def __init__(self, arguments: Sequence[str], log: BinaryIO, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
        )
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._watcher = threading.Thread(target=self._wait_in_thread, name=f"child-{self.pid}", daemon=True)
        try:
            self._watcher.start()
        except RuntimeError:  # thread limit reached
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
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ended.set)
