"""Short text for messages. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_MAX_CHARS = 400  # of a third-party message
_MAX_NAME_CHARS = 100
_TYPO_CUTOFF = 0.75  # a wrong suggestion is worse than none: `type_k` is not `top_k`
_SHORT_NAME_CUTOFF = 0.6  # two letters swapped in a name of three
_SHORT_NAME_CHARS = 3


def pluralize(count: int, singular: str, plural: str = "") -> str:
    """Format a count with its noun: `1 run`, `2 runs`."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def summarize_error(error: BaseException) -> str:
    """Return the first line of an error, or its class name if it has no message."""
    line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}…"


def find_nearest(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return the known names that `name` is likely a typo of, nearest first."""
    from difflib import get_close_matches

    cutoff = _SHORT_NAME_CUTOFF if len(name) <= _SHORT_NAME_CHARS else _TYPO_CUTOFF
    return get_close_matches(name[:_MAX_NAME_CHARS], list(known), n=count, cutoff=cutoff)
