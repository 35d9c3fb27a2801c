"""The end of a worker's log."""

from __future__ import annotations

import os
from pathlib import Path

_LINE_BYTES = 4096  # more than a line has on average, by far


def last_lines(path: Path, count: int) -> list[str]:
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - count * _LINE_BYTES))
            return log.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []
