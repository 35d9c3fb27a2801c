"""What the system knows about this process; None where it does not tell."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes() -> int | None:
    """Memory of this process alone: workers count their own."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def start_time_seconds() -> float | None:
    """When this process started, in seconds since 1970."""
    try:
        # The second field is the program's name in brackets, which may hold anything.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        return int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError, StopIteration):
        return None
