"""Settings that need less memory, for one more try after memory ran out while loading. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.contract import EngineSpec

_CONTEXTS = ("ctx", "context", "model_len")
_TOKENS = (*_CONTEXTS, "cache_tokens")  # a cache must hold one request of full length
_MIN_TOKENS = 256


def reduce_settings(spec: EngineSpec, settings: Mapping[str, Any], context_length: int | None) -> dict[str, Any] | None:
    """All settings, with those that `spec.smaller` names halved; None when none of them can be made smaller.

    `context_length` is what the engine takes when none is set. It may be less than the model was made for, and some
    sizes follow from others: give `{**needs.sizes(facts), **settings}` to have them all set.
    """
    changed = {
        name: half
        for name in spec.smaller
        if (half := _halve_setting(spec, name, settings, context_length)) is not None
    }
    return {**settings, **changed} if changed else None


def _halve_setting(spec: EngineSpec, name: str, settings: Mapping[str, Any], context_length: int | None) -> int | None:
    """The new value of one setting; None where it has none, or is as small as may be."""
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
