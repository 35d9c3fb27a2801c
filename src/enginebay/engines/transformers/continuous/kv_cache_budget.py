"""The memory budget of the KV cache, and the size of its buckets. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_ROWS = 32
_MAX_BUCKET_SHARE = 8  # a new bucket takes at most 1/8 of the memory, unless it needs more


@dataclass(frozen=True, slots=True)
class KVCacheBudget:
    """Capacity of the KV cache in tokens, and the maximum number of rows.

    With a budget, buckets are allocated large and kept when empty: a CUDA graph holds the addresses of its bucket's
    tensors and is lost when they change. Without one, buckets grow by doubling and are freed when empty.
    """

    tokens: int
    max_rows: int


def choose_bucket_rows(
    needed: int, allocated: int, capacity: int, allocated_tokens: int, budget: KVCacheBudget | None
) -> int:
    """Return the new row count of a bucket that must grow. `allocated_tokens`: of all buckets together."""
    if budget is None:
        return max(needed, 2 * allocated)
    preferred = max(_FIRST_ROWS, 2 * allocated, budget.tokens // _MAX_BUCKET_SHARE // capacity)
    affordable = allocated + max(0, budget.tokens - allocated_tokens) // capacity
    return max(needed, min(preferred, budget.max_rows, affordable))
