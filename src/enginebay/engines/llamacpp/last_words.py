"""What the library wrote while it loaded: its exceptions only say that it failed.

It writes to the process's standard error. Where that is a file, as a worker's log is, it can be read back; nothing is
redirected, so that the words of a process that dies stay where they are.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

_MOST = 64 * 1024
_PATIENCE_S = 0.1  # a thread of the library's own does the writing
_MEMORY_WORDS = ("failed to allocate", "unable to allocate", "insufficient memory", "out of memory", "bad_alloc")


class LastWords:
    """What is written to a file descriptor from now on."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._begin: int | None = None
        with contextlib.suppress(OSError):
            found = os.fstat(descriptor)
            self._begin = found.st_size if stat.S_ISREG(found.st_mode) else None

    def text(self) -> str:
        """Empty where it cannot be read."""
        if self._begin is None:
            return ""
        time.sleep(_PATIENCE_S)
        try:
            with Path(f"/dev/fd/{self._descriptor}").open("rb") as file:
                file.seek(self._begin)
                return file.read(_MOST).decode("utf-8", "replace")
        except OSError:
            return ""


def memory_ran_out(text: str) -> bool:
    low = text.lower()
    return any(word in low for word in _MEMORY_WORDS)
