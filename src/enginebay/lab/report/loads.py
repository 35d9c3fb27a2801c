"""Under which load a run was measured, in a number and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Load:
    """`asked` is what the axis of load shows; None where the load has no single number (offline, traces)."""

    kind: str
    label: str
    asked: float | None = None
    unit: str = ""


def load_of(profile: Mapping[str, Any]) -> Load:
    """Read the profile of a manifest; an unknown kind keeps its own name."""
    kind = str(profile.get("kind", "unknown"))
    rate = _number(profile.get("rate"))
    concurrency = _number(profile.get("concurrency"))
    if concurrency is not None:
        return Load(kind, f"closed loop, {concurrency:g} at once", concurrency, "requests at once")
    if rate is not None:
        extra = _number(profile.get("burstiness"))
        tail = f", burstiness {extra:g}" if extra is not None else ""
        return Load(kind, f"{_title(kind)}, {rate:g}/s{tail}", rate, "requests/s asked")
    start, end = _number(profile.get("from_rate")), _number(profile.get("to_rate"))
    if start is not None and end is not None:
        return Load(kind, f"ramp, {start:g} to {end:g}/s")
    return Load(kind, _title(kind))


def _title(kind: str) -> str:
    return "Poisson" if kind == "poisson" else kind


def _number(found: Any) -> float | None:
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None
