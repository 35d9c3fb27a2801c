"""Reads the messages of `bay chat`: with editing, history and several lines on a terminal, else line by line.

Line editing is the standard library's readline, not prompt_toolkit: it does all of this without a dependency.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from enginebay.cli.termination import Terminated
from enginebay.util.paths import home_dir

PROMPT, CONTINUATION = "> ", "... "
QUOTES = '"""'
MAX_HISTORY_LINES = 1000
_MAX_LINE_CHARS = 10_000  # a longer one, such as a pasted file, is not remembered


class ChatInput:
    """Messages from standard input. Iteration ends with Ctrl-D, or with Ctrl-C on an empty line."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty()
        self._is_continued = False  # a message of several lines is being typed

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                message = self._read_message() if self.is_terminal else input()
            except EOFError:
                if self.is_terminal:
                    print()
                return
            except KeyboardInterrupt as interrupt:
                if isinstance(interrupt, Terminated) or not self.is_terminal:
                    raise
                print()
                if not self._is_continued and not _was_typing():
                    return
                continue
            if message.strip():
                yield message.strip()

    def _read_message(self) -> str:
        self._is_continued = False
        line = input(PROMPT)
        self._is_continued = True
        if line.startswith(QUOTES):
            text = line.removeprefix(QUOTES)
            while not text.rstrip().endswith(QUOTES):
                text = f"{text}\n{input(CONTINUATION)}"
            return text.rstrip().removesuffix(QUOTES)
        while line.endswith("\\"):
            line = f"{line[:-1]}\n{input(CONTINUATION)}"
        return line


def _was_typing() -> bool:
    """Return whether the interrupted line had text."""
    readline = _import_readline()
    return readline is not None and bool(readline.get_line_buffer())


def _import_readline() -> Any:
    try:
        import readline
    except ImportError:  # a Python built without it: no editing, no history
        return None
    return readline


@contextmanager
def use_history(enabled: bool) -> Iterator[None]:
    """Load the history of earlier chats, and save it afterwards, for its owner only."""
    readline = _import_readline() if sys.stdin.isatty() else None  # importing it turns line editing on
    if readline is None:
        yield
        return
    path = home_dir() / "chat_history"
    readline.set_history_length(MAX_HISTORY_LINES)
    if enabled:
        with suppress(OSError):
            readline.read_history_file(str(path))
    try:
        yield
    finally:
        if enabled:
            with suppress(OSError):
                _save_history(readline, path)


def _save_history(readline: Any, path: Path) -> None:
    for index in reversed(range(readline.get_current_history_length())):
        if len(readline.get_history_item(index + 1) or "") > _MAX_LINE_CHARS:
            readline.remove_history_item(index)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    readline.write_history_file(str(path))
    path.chmod(0o600)
