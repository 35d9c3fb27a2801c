"""What a request over a limit is told: how far it may go, and which setting says so. Pure."""

from __future__ import annotations

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import InvalidRequest


def format_limit_hint(setting: str, advice: str = "") -> str:
    """`instead`: what whoever asks can do; the setting is for the operator."""
    named = f"the limit is set by server.limits.{setting}"
    return f"{advice}; {named}" if advice else named


def make_limit_error(what: str, limits: ServerLimits, setting: str, param: str) -> InvalidRequest:
    """`what` says how much was asked for."""
    allowed = getattr(limits, setting)
    return InvalidRequest(f"{what}, allowed here is at most {allowed}", format_limit_hint(setting), param=param)
