"""A process that stamps what arrives must not wait for its turn: the wait would be measured as the server's."""

from __future__ import annotations

import os
from contextlib import suppress


def raise_priority() -> None:
    """Run before all usual processes, where the system lets us (root, or CAP_SYS_NICE); else as everybody does."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
