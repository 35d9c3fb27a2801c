"""Small words for people. Pure."""

from __future__ import annotations


def counted(count: int, one: str, several: str = "") -> str:
    """`1 run`, `2 runs`."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"
