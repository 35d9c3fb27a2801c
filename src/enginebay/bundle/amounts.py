"""Sizes as people write them. Pure."""

from __future__ import annotations

import re

from enginebay.errors import UsageError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_SMALLEST = 100_000


def size_of(text: str) -> int:
    """`60MB` and `1.5GB` count in thousands, `60MiB` in 1,024. Raises `UsageError`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]I?)?B?\s*", text.upper())
    size = int(float(found[1]) * _UNITS[found[2] or ""]) if found else 0
    if size < _SMALLEST:
        raise UsageError(f"{text!r} is not a size for a part", "as in --split 60MB; at least 100kB")
    return size
