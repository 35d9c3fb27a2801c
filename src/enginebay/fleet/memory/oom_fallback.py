"""Smaller settings for a second attempt after a load ran out of memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.contract import EngineSpec

_CONTEXTS = ("ctx", "context", "model_len")
_TOKENS = (*_CONTEXTS, "cache_tokens")  # a cache must hold one request of full length
_MIN_TOKENS = 256


def reduce_settings(spec: EngineSpec, settings: Mapping[str, Any], context_length: int | None) -> dict[str, Any] | None:
    """Return all settings with those in `spec.smaller` halved, or None if none can shrink.

    `context_length` is the engine's default, which may be below the model's maximum. Some sizes derive from others:
    pass `{**estimate.sizes, **settings}` so that all are set.
    """
    changed = {
        name: half
        for name in spec.smaller
        if (half := _halve_setting(spec, name, settings, context_length)) is not None
    }
    return {**settings, **changed} if changed else None


def _halve_setting(spec: EngineSpec, name: str, settings: Mapping[str, Any], context_length: int | None) -> int | None:
    """Return half the setting's value, or None if it has no value or is at its minimum."""
    declared = spec.settings.get(name)
    value = settings.get(name)
    if value is None and declared is not None:
        value = declared.default
    if value is None and _contains_any(name, _CONTEXTS):
        value = context_length
    if not isinstance(value, int):
        return None
    least = _MIN_TOKENS if _contains_any(name, _TOKENS) else 1
    if declared is not None and declared.minimum is not None:
        least = max(least, -int(-declared.minimum // 1))
    half = max(value // 2, least)
    return half if half < value else None


def _contains_any(name: str, words: tuple[str, ...]) -> bool:
    return any(word in name for word in words)
