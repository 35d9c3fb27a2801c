"""Errors for requests over a limit: the maximum, and the setting that defines it. Pure."""

from __future__ import annotations

from enginebay.errors import InvalidRequest


def format_limit_hint(setting: str, advice: str = "") -> str:
    """Return a hint with `advice` for the client and the setting's name for the operator."""
    source = f"the limit is set by server.limits.{setting}"
    return f"{advice}; {source}" if advice else source


def make_limit_error(actual: str, limits: object, setting: str, param: str) -> InvalidRequest:
    """Return the error for a value over `limits.<setting>`. `actual` states the value, such as "n is 3"."""
    maximum = getattr(limits, setting)
    return InvalidRequest(f"{actual}; the maximum is {maximum}", format_limit_hint(setting), param=param)
