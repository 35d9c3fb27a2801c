"""Events whose lines end where they should: many clients split lines at Unicode's ends too, not at LF and CR alone."""

from __future__ import annotations

_SEPARATOR_ESCAPES = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def escape_line_separators(events: bytes) -> bytes:
    """The events, with such characters escaped: they can only be within JSON strings, where that changes nothing."""
    if not events.isascii():
        for raw, escaped in _SEPARATOR_ESCAPES:
            events = events.replace(raw, escaped)
    return events
