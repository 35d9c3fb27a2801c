"""Small words for people. Pure."""

from __future__ import annotations

_MOST = 400  # characters of a line of somebody else's


def counted(count: int, one: str, several: str = "") -> str:
    """`1 run`, `2 runs`."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def in_one_line(error: BaseException) -> str:
    """What an error of a library says, or else what it is called."""
    line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return line if len(line) <= _MOST else f"{line[:_MOST]}…"
