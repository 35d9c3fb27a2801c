"""Which GPUs a run's server computed on, as its manifest tells: `NVIDIA H200 GPU-1a2b…` of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_UUID = " GPU-"


def products(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """What they are, one name for each GPU; empty where it was none, or nobody knows."""
    return tuple(sorted(str(label).partition(_UUID)[0] for label in environment.get("gpu") or ()))


def other_products(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two runs had GPUs of different kinds. How many of them, or none at all, is a matter of the engine's settings."""
    x, y = set(products(a)), set(products(b))
    return bool(x and y) and x != y
