"""Short text for messages. Pure."""

from __future__ import annotations

_MAX_CHARS = 400  # of a third-party message


def pluralize(count: int, singular: str, plural: str = "") -> str:
    """Format a count with its noun: `1 run`, `2 runs`."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def summarize_error(error: BaseException) -> str:
    """Return the first line of an error, or its class name if it has no message."""
    line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}…"
