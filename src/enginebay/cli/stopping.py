"""SIGTERM, as of `timeout`, a batch system or a container, taken like Ctrl-C: what was started is ended, and how to go on is said."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """While the block lasts. For the main thread."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
