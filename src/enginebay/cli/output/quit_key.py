"""Quitting a live display with a single key."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_KEYS = frozenset(b"qQ")

WaitForQuit = Callable[[float], bool]  # waits this many seconds; True: quit


@contextmanager
def listen_for_quit_key() -> Iterator[WaitForQuit]:
    """Yield a wait that `q` ends. Restores the terminal afterwards; without a terminal it only waits."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield wait_without_keys
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    settings = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)  # keys arrive unbuffered; Ctrl-C still interrupts
        yield lambda seconds: _is_quit_pressed_within(descriptor, seconds)
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSANOW, settings)


def wait_without_keys(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _is_quit_pressed_within(descriptor: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left_s)[0]:
            try:
                typed = os.read(descriptor, 1024)
            except OSError:
                typed = b""
            if not typed or _KEYS & {*typed}:  # empty: the terminal is gone
                return True
    return False
