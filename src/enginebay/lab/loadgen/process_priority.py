"""Scheduling priority for processes that timestamp: time spent waiting for a core would count as the server's."""

from __future__ import annotations

import os
from contextlib import suppress


def raise_priority() -> None:
    """Run at the highest priority if allowed (root, or CAP_SYS_NICE)."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
