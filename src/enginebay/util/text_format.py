"""Small words for people. Pure."""

from __future__ import annotations

_MAX_CHARS = 400  # characters of a line of somebody else's


def pluralize(count: int, singular: str, plural: str = "") -> str:
    """`1 run`, `2 runs`."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def summarize_error(error: BaseException) -> str:
    """What an error of a library says, or else what it is called."""
    line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}…"
