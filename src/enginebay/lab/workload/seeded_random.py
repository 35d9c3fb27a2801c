"""Seeded random number generators."""

from __future__ import annotations

from typing import Any


def make_generator(*seeds: int) -> Any:
    """Return a numpy Generator that is identical on every machine and depends on all seeds."""
    import numpy as np

    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([abs(seed) for seed in seeds])))
