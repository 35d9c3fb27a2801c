"""Comparing version numbers. Pure."""

from __future__ import annotations

import re

_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)(.*)")
_EARLY = re.compile(r"[-_.]?(a|b|rc|alpha|beta|dev|pre)", re.IGNORECASE)


def version_key(version: str) -> tuple[tuple[int, ...], int, str]:
    """Sorts versions oldest first. `1.2` equals `1.2.0`; the local part (`+cpu`) says nothing about age."""
    public = version.split("+", 1)[0].strip()
    matched = _RELEASE.fullmatch(public)
    if matched is None:
        return ((), 0, public)
    numbers = [int(part) for part in matched[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    rest = matched[2]
    return (tuple(numbers), 0 if _EARLY.match(rest) else 1, rest)


def is_same_version(left: str, right: str) -> bool:
    return version_key(left) == version_key(right)
