"""The one source of chance."""

from __future__ import annotations

from typing import Any

import numpy as np


def make_generator(*seeds: int) -> Any:
    """A numpy Generator, the same on every machine. Several seeds make one that depends on all of them."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([abs(seed) for seed in seeds])))
