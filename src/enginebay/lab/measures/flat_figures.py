"""The numbers among a run's measures by dotted name, and which way is better. Pure."""

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
_NEUTRAL_PARTS = ("count",)  # of a distribution: neither good nor bad


def flatten_figures(measures: Mapping[str, Any]) -> dict[str, float]:
    """`{"ttft_s": {"p95": 0.4}}` becomes `{"ttft_s.p95": 0.4}`; whatever is no finite number is left out."""
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
    """Which way a figure is better; None where neither is, as with a count of requests."""
    name, _, part = figure.partition(".")
    if part in _NEUTRAL_PARTS:
        return None
    if name.endswith(_HIGHER_IS_BETTER):
        return "higher"
    if name == "energy_j" or any(sign in name for sign in _LOWER_IS_BETTER):
        return "lower"
    return None
