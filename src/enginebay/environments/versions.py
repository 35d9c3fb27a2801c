"""Compares version numbers. Pure."""

from __future__ import annotations

import re

_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)(.*)")
_EARLY = re.compile(r"[-_.]?(a|b|rc|alpha|beta|dev|pre)", re.IGNORECASE)


def version_key(version: str) -> tuple[tuple[int, ...], int, str]:
    """Return a sort key, oldest first. `1.2` equals `1.2.0`; the local part (`+cpu`) is ignored."""
    public = version.split("+", 1)[0].strip()
    match = _RELEASE.fullmatch(public)
    if match is None:
        return ((), 0, public)
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    rest = match[2]
    return (tuple(numbers), 0 if _EARLY.match(rest) else 1, rest)


def is_same_version(left: str, right: str) -> bool:
    return version_key(left) == version_key(right)
