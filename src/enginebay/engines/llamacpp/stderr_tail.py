"""Read the library's stderr output to find why a load failed: its API does not say.

Works if stderr is a file, as a worker's log is. Nothing is redirected, so a dying process still logs its last lines.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

_MAX_BYTES = 64 * 1024
_SETTLE_S = 0.1  # the library writes from its own thread
_OUT_OF_MEMORY_PHRASES = (
    "failed to allocate",
    "unable to allocate",
    "insufficient memory",
    "out of memory",
    "bad_alloc",
)
_MAX_REASON = 300


class StderrTail:
    """Reads what is written to a file descriptor from now on."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._start: int | None = None
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            self._start = status.st_size if stat.S_ISREG(status.st_mode) else None

    def read(self) -> str:
        """Return the text; empty if it cannot be read."""
        if self._start is None:
            return ""
        time.sleep(_SETTLE_S)
        try:
            with Path(f"/dev/fd/{self._descriptor}").open("rb") as file:
                file.seek(self._start)
                return file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""


def is_out_of_memory(text: str) -> bool:
    lowered = text.lower()
    return any(phrase in lowered for phrase in _OUT_OF_MEMORY_PHRASES)


def truncate_reason(reason: str) -> str:
    return reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}..."
