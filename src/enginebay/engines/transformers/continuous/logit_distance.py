"""The distance between two computations of the same logits."""

from __future__ import annotations

import math
from typing import Any

import torch


def compute_logit_distance(actual: Any, reference: Any) -> float:
    """Return the largest root mean square difference of a row of logits [rows, vocabulary], in standard deviations of that row.

    A mean, because one of a hundred thousand logits is always an outlier. Infinite if any value is NaN.
    """
    spread = reference.std(-1)
    worst = ((actual - reference).square().mean(-1).sqrt() / torch.where(spread > 0, spread, 1.0)).max()
    return float(worst) if math.isfinite(worst) else math.inf
