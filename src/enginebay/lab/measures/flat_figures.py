"""Numeric figures of a run by dotted name, and whether higher or lower is better. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

Direction = Literal["higher", "lower"]

_NON_FIGURES = ("absent", "slo_missed")
_HIGHER_IS_BETTER = ("requests_per_s", "tokens_per_s", "goodput_share")
_LOWER_IS_BETTER = (
    "_energy_j",
    "ttft_",
    "itl_s",
    "tpot_s",
    "e2e_",
    "queue_s",
    "send_lag_s",
    "j_per_",
    "cost_per_",
    "errors",
    "memory_bytes",
)
_NEUTRAL_PARTS = ("count",)  # parts of a distribution without a better direction


def flatten_figures(measures: Mapping[str, Any]) -> dict[str, float]:
    """Turn `{"ttft_s": {"p95": 0.4}}` into `{"ttft_s.p95": 0.4}`; drop everything but finite numbers."""
    figures: dict[str, float] = {}
    for name, value in measures.items():
        if name in _NON_FIGURES:
            continue
        if isinstance(value, Mapping):
            figures |= {f"{name}.{inner}": number for inner, number in flatten_figures(value).items()}
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            figures[name] = float(value)
    return figures


def better_direction(figure: str) -> Direction | None:
    """Return which direction is better; None if neither is, as for a count of requests."""
    name, _, part = figure.partition(".")
    if part in _NEUTRAL_PARTS:
        return None
    if name.endswith(_HIGHER_IS_BETTER):
        return "higher"
    if name == "energy_j" or any(pattern in name for pattern in _LOWER_IS_BETTER):
        return "lower"
    return None
