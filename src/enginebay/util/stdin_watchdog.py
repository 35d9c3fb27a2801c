"""A process that another one started for itself, and that ends with it, however that one ends: even by SIGKILL."""

from __future__ import annotations

import os
import signal
import time
from threading import Thread

_GRACE_PERIOD_S = 10.0  # nobody waits for the answers that are still being made


def exit_on_stdin_eof(grace_period_s: float = _GRACE_PERIOD_S) -> None:
    """Have this process end when nobody holds the other end of its standard input any more."""
    Thread(target=_wait_for_stdin_eof, args=(grace_period_s,), name="lifeline", daemon=True).start()


def _wait_for_stdin_eof(grace_period_s: float) -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:  # there is no standard input: the same as its end
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_period_s)
    os.kill(os.getpid(), signal.SIGKILL)  # engines have guards of their own
