"""Exits this process when its parent closes stdin, which also happens if the parent is killed."""

from __future__ import annotations

import os
import signal
import time
from threading import Thread

_GRACE_PERIOD_S = 10.0  # for open requests; nobody reads their answers


def exit_on_stdin_eof(grace_period_s: float = _GRACE_PERIOD_S) -> None:
    """Terminate this process at EOF on stdin; kill it after the grace period."""
    Thread(target=_wait_for_stdin_eof, args=(grace_period_s,), name="lifeline", daemon=True).start()


def _wait_for_stdin_eof(grace_period_s: float) -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:  # no stdin counts as EOF
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_period_s)
    os.kill(os.getpid(), signal.SIGKILL)  # workers watch their parent themselves
