"""What a request over a limit is told: how far it may go, and which setting says so. Pure."""

from __future__ import annotations

from enginebay.config.server import Limits
from enginebay.errors import InvalidRequest


def limit_hint(setting: str, instead: str = "") -> str:
    """`instead`: what whoever asks can do; the setting is for the operator."""
    named = f"the limit is set by server.limits.{setting}"
    return f"{instead}; {named}" if instead else named


def over_limit(what: str, limits: Limits, setting: str, param: str) -> InvalidRequest:
    """`what` says how much was asked for."""
    allowed = getattr(limits, setting)
    return InvalidRequest(f"{what}, allowed here is at most {allowed}", limit_hint(setting), param=param)
