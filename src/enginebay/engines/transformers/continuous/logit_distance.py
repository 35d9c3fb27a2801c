"""How far two computations of the same logits are from each other."""

from __future__ import annotations

import math
from typing import Any

import torch


def compute_logit_distance(actual: Any, reference: Any) -> float:
    """Of rows of logits [rows, vocabulary], the row that differs most: its root mean square, in standard deviations of that row.

    A mean, since of a hundred thousand logits one is always far off. Infinite where anything is not a number.
    """
    spread = reference.std(-1)
    worst = ((actual - reference).square().mean(-1).sqrt() / torch.where(spread > 0, spread, 1.0)).max()
    return float(worst) if math.isfinite(worst) else math.inf
