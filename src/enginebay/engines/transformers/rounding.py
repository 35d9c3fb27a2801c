"""Whether two computations of the same logits agree, as far as the format of their numbers lets them."""

from __future__ import annotations

from typing import Any

# Root mean square of the difference, in standard deviations of the logits. Seen between two orders of the same sums: 0.00001 in
# float32, 0.004 in float16, 0.04 in bfloat16. A scale of attention that is 2% off makes 0.03, 10% off 0.14, a window or a sink 1.
_FULL, _LESS = 0.01, 0.12


def agree(ours: Any, plain: Any, full: bool = False) -> bool:
    """`full`: all of it is computed in float32. A single logit may be far off where there are a hundred thousand."""
    difference = (ours - plain).float()
    spread = float(plain.float().std()) or 1.0
    return float(difference.square().mean().sqrt()) < (_FULL if full else _LESS) * spread  # never of what is not finite
