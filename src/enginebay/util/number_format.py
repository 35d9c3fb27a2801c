"""Human-readable numbers. Pure."""

from __future__ import annotations

import math

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_duration(seconds: float) -> str:
    """Format a latency: `12.3 ms`, `450 ms`, `2.1 s`."""
    if math.isinf(seconds):
        return "off scale"
    if seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def format_age(seconds: float) -> str:
    """Format an age: `40 s`, `5 min`, `2 d`."""
    for size_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_bytes(value: float) -> str:
    """Format a size in binary units: `512 MiB`, `1.5 GiB`."""
    power = 0
    while value >= 1024 and power < len(_UNITS) - 1:
        value, power = value / 1024, power + 1
    return f"{value:.0f} {_UNITS[power]}" if power < 3 else f"{value:.1f} {_UNITS[power]}"
