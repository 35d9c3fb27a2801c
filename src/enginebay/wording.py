"""Small words for people. Pure."""

from __future__ import annotations

_MOST = 160  # characters of one line


def counted(count: int, one: str, several: str = "") -> str:
    """`1 run`, `2 runs`."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def first_line(error: BaseException) -> str:
    """What an error of a library says, or else what it is called."""
    return next(iter(str(error).strip().splitlines()), "")[:_MOST] or type(error).__name__
