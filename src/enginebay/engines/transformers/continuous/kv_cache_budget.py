"""How wide the shelves of the KV cache are made. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_ROWS = 32
_MAX_BUCKET_SHARE = 8  # a new shelf takes at most one part in so many of the memory, unless it needs more


@dataclass(frozen=True, slots=True)
class KVCacheBudget:
    """Memory of the KV cache in tokens, and the most rows there can be.

    Where it is known, shelves are made wide at once and stay when they are empty: a recorded step knows the addresses of
    its shelf's tensors, and is lost when these change. Where it is not, they grow by doubling and go when they are empty.
    """

    tokens: int
    max_rows: int


def choose_bucket_rows(
    needed: int, allocated: int, capacity: int, allocated_tokens: int, budget: KVCacheBudget | None
) -> int:
    """Rows to make room for on a shelf that has `allocated` and needs more. `taken`: tokens of all shelves now."""
    if budget is None:
        return max(needed, 2 * allocated)
    wished = max(_FIRST_ROWS, 2 * allocated, budget.tokens // _MAX_BUCKET_SHARE // capacity)
    affordable = allocated + max(0, budget.tokens - allocated_tokens) // capacity
    return max(needed, min(wished, budget.max_rows, affordable))
