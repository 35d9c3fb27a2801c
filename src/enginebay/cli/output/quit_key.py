"""Ending what runs in the terminal by a single key."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_KEYS = frozenset(b"qQ")

WaitForQuit = Callable[[float], bool]  # for so many seconds; True: it is time to end


@contextmanager
def listen_for_quit_key() -> Iterator[WaitForQuit]:
    """A wait that `q` ends. The terminal gets its settings back; where standard input is none, it only waits."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield wait_without_keys
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    settings = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)  # keys come at once, and Ctrl-C stays what it is
        yield lambda seconds: _is_quit_pressed_within(descriptor, seconds)
    finally:
        with suppress(termios.error):  # the terminal has gone
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
            if not typed or _KEYS & {*typed}:  # nothing at all: the terminal has gone
                return True
    return False
