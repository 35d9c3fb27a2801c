"""Mean and percentiles of a set of values, and how many values a percentile needs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

PERCENTILES = {"median": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
_TAIL_SHARE = 0.025  # on each side of a 95% interval


@dataclass(frozen=True, slots=True)
class DistributionSummary:
    """Summary of a set of values. Percentiles interpolate linearly between the two nearest values."""

    count: int
    mean: float
    median: float
    p90: float
    p95: float
    p99: float
    minimum: float
    maximum: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def summarize(values: Sequence[float]) -> DistributionSummary:
    """Summarize at least one value; all must be finite."""
    import numpy as np  # here, since planning a study needs no numpy

    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("a distribution needs at least one value")
    if not np.isfinite(array).all():
        raise ValueError("a distribution needs finite values")
    percentiles = np.percentile(array, list(PERCENTILES.values())).tolist()
    return DistributionSummary(
        count=int(array.size),
        mean=float(array.mean()),
        minimum=float(array.min()),
        maximum=float(array.max()),
        **dict(zip(PERCENTILES, percentiles, strict=True)),
    )


def is_quotable(percent: float, count: int) -> bool:
    """Return whether `count` independent values support this percentile; see `count_needed`."""
    return count >= count_needed(percent)


def count_needed(percent: float) -> int:
    """Return how many values put the percentile's distribution-free 95% interval inside the sample.

    All of n values lie below the p-th percentile with probability p^n. The interval has an upper end in the sample
    only if that is at most 2.5%, so n >= ln(0.025) / ln(p). Below the median the lower end decides.
    """
    if not 0 < percent < 100:
        raise ValueError(f"percentile must be between 0 and 100, not {percent}")
    share = max(percent, 100 - percent) / 100
    return math.ceil(math.log(_TAIL_SHARE) / math.log(share))
