"""Exclusive file locks between processes. The kernel releases a lock however its holder dies."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from enginebay.util.child_processes import raise_if_interrupted

_POLL_S = 0.1


@contextmanager
def exclusive_lock(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[TextIO]:
    """Hold an exclusive lock on `path`. Calls `on_wait` once if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if not try_lock(file):
            if on_wait is not None:
                on_wait()
            while not try_lock(file):  # poll: a blocking call could not be interrupted
                raise_if_interrupted()
                time.sleep(_POLL_S)
        yield file


def try_lock(file: TextIO) -> bool:
    """Take the lock if it is free. Return whether it was."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
