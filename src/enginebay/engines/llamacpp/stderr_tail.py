"""What the library wrote while it loaded or took a JSON schema: it only says that it failed, or not even that.

It writes to the process's standard error. Where that is a file, as a worker's log is, it can be read back; nothing is
redirected, so that the words of a process that dies stay where they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MAX_BYTES = 64 * 1024
_SETTLE_S = 0.1  # a thread of the library's own does the writing
_OUT_OF_MEMORY_PHRASES = (
    "failed to allocate",
    "unable to allocate",
    "insufficient memory",
    "out of memory",
    "bad_alloc",
)
_SCHEMA_REPORT, _REPORT_WHERE, _REPORT_SCHEMA = "failed to compile JSON schema: ", "\n   1 | ", "start: %json "
_MAX_REASON = 300


class StderrTail:
    """What is written to a file descriptor from now on."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._start: int | None = None
        with contextlib.suppress(OSError):
            found = os.fstat(descriptor)
            self._start = found.st_size if stat.S_ISREG(found.st_mode) else None

    def read(self) -> str:
        """Empty where it cannot be read."""
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
    low = text.lower()
    return any(word in low for word in _OUT_OF_MEMORY_PHRASES)


def find_schema_error(text: str, schema: Mapping[str, Any]) -> str:
    """Why the library cannot follow this JSON schema; empty where the text does not tell.

    Each report quotes the schema it is about: another request's may stand beside it.
    """
    for report in text.split(_SCHEMA_REPORT)[1:]:
        reason, _, where = report.partition(_REPORT_WHERE)
        quoted = where.partition(_REPORT_SCHEMA)[2].partition("\n")[0]
        with contextlib.suppress(ValueError):  # cut short
            if json.loads(quoted) == schema:
                return truncate_reason(" ".join(reason.split()))
    return ""


def truncate_reason(reason: str) -> str:
    return reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}..."
