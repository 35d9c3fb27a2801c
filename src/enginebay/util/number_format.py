"""Human-readable numbers: formats them, and parses sizes and durations such as `4GiB` and `10m`. Pure."""

from __future__ import annotations

import math
import re

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*(?:([KMGT])(I)?)?B?")
_PART = r"(\d{1,18}(?:\.\d{1,18})?)\s*(ms|s|min|m|h|d)"
_DURATION = re.compile(rf"-?(?:{_PART}\s*)+")
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


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


def format_seconds(value: float) -> str:
    """Format with two significant digits: `0.0042s`, `0.21s`, `2.4s`, `31s`."""
    if value >= 10:
        return f"{value:.0f}s"
    if value >= 1:
        return f"{value:.1f}s"
    return f"{value:.2f}s" if value >= 0.1 else f"{value:.2g}s" if value >= 0.0001 else "0s"


def format_digits(value: float | None, digits: int = 4, thousands: str = "") -> str:
    """Format with `digits` significant digits, whole numbers in full.

    Very small values have an exponent; so have very large ones unless thousands are separated.
    """
    if value is None:
        return "-"
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)))
    if power < -4 or (power >= 9 and not thousands):
        return f"{value:.{digits - 1}e}"
    return f"{value:{thousands}.{max(0, digits - 1 - power)}f}"


def format_bytes(value: float) -> str:
    """Format a size in binary units: `1.5 MiB`, `512 MiB`, `23.4 GiB`."""
    power = 0
    while value >= 1024 and power < len(_UNITS) - 1:
        value, power = value / 1024, power + 1
    decimals = 1 if power >= 3 or (power and value < 10) else 0
    return f"{value:.{decimals}f} {_UNITS[power]}"


def parse_size(text: str) -> int | None:
    """Return bytes: `4GB` is decimal, `4GiB` binary. None: not a size."""
    match = _SIZE.fullmatch(text.strip().upper())
    if match is None:
        return None
    power = " KMGT".index(match[2] or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def parse_duration(text: str) -> float | None:
    """Return seconds: `10m` are 600, `-1m` are -60. None: not a duration."""
    text = text.strip().lower()
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _DURATION.fullmatch(text):
        return None
    seconds = sum(float(count) * _SECONDS[unit] for count, unit in re.findall(_PART, text))
    return -seconds if text.startswith("-") else seconds
