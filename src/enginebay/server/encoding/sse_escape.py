"""Escapes Unicode line separators: many clients split SSE lines at them, not only at LF and CR."""

from __future__ import annotations

_SEPARATOR_ESCAPES = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def escape_line_separators(events: bytes) -> bytes:
    """Escape U+0085, U+2028 and U+2029. They only occur within JSON strings, whose value does not change."""
    if not events.isascii():
        for raw, escaped in _SEPARATOR_ESCAPES:
            events = events.replace(raw, escaped)
    return events
