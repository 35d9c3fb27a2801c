"""A KV cache for sequences of different lengths that join and leave between steps.

A bucket holds rows of up to its capacity in one tensor per layer, [rows, kv heads, capacity, head size]. A step writes
one position per row in place, and attention reads a view: nothing is concatenated or copied, except when a row outgrows
its bucket or the last rows fill gaps. A long row does not make short rows slower.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

from enginebay.engines.transformers.continuous.scheduler import (
    CacheOp,
    Fork,
    KVCacheBudget,
    Release,
    Reserve,
    choose_bucket_rows,
    compute_bucket_capacity,
)

_tensor_versions = itertools.count(1)


class CacheBucket:
    """Rows of one capacity, without gaps: row i is index i of every layer's tensors."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.sequence_ids: list[int] = []  # of each row, in order
        self.layers: dict[int, tuple[Any, Any]] = {}
        self.allocated_rows = 0
        self.tensor_version = 0  # changes with the tensors; unique across buckets

    @property
    def unused_tokens(self) -> int:
        """Allocated tokens without a row."""
        return (self.allocated_rows - len(self.sequence_ids)) * self.capacity

    def add(self, sequence_id: int) -> int:
        self.sequence_ids.append(sequence_id)
        return len(self.sequence_ids) - 1

    def remove(self, indices: Collection[int]) -> dict[int, int]:
        """Remove rows; the last rows fill the gaps. Return the new index of each sequence that moved."""
        removed, remaining = set(indices), len(self.sequence_ids) - len(indices)
        gaps = sorted(index for index in removed if index < remaining)
        sources = [index for index in range(remaining, len(self.sequence_ids)) if index not in removed]
        moved = {self.sequence_ids[source]: gap for gap, source in zip(gaps, sources, strict=True)}
        if moved:
            copy_rows(self, sources, self, gaps, self.capacity)
        for sequence_id, gap in moved.items():
            self.sequence_ids[gap] = sequence_id
        del self.sequence_ids[remaining:]
        return moved

    def resize(self, rows: int) -> None:
        """Reallocate the tensors for this many rows, keeping their contents."""
        self.allocated_rows = rows
        self.tensor_version = next(_tensor_versions)
        for layer, pair in self.layers.items():
            self.layers[layer] = (self._resize_tensor(pair[0]), self._resize_tensor(pair[1]))

    def get_tensors(self, layer: int, like_keys: Any, like_values: Any) -> tuple[Any, Any]:
        """Return this layer's tensors. Allocated on first use: only the model knows their shape, dtype and device."""
        if layer not in self.layers:
            self.layers[layer] = (self._allocate(like_keys), self._allocate(like_values))
        return self.layers[layer]

    def _allocate(self, like: Any) -> Any:
        # Zeros, not empty: masked values must be finite.
        return torch.zeros(
            self.allocated_rows, like.shape[1], self.capacity, like.shape[3], dtype=like.dtype, device=like.device
        )

    def _resize_tensor(self, old: Any) -> Any:
        new = torch.zeros(self.allocated_rows, *old.shape[1:], dtype=old.dtype, device=old.device)
        count = min(old.shape[0], self.allocated_rows)
        new[:count] = old[:count]
        return new


def copy_rows(
    source: CacheBucket, rows: Sequence[int], target: CacheBucket, target_rows: Sequence[int], length: int
) -> None:
    """Copy the first `length` positions of some rows to rows of the same or another bucket."""
    indices: dict[Any, tuple[Any, Any]] = {}
    for layer, pair in source.layers.items():
        for old, new in zip(pair, target.get_tensors(layer, *pair), strict=True):
            if len(rows) == 1:
                new[target_rows[0], :, :length].copy_(old[rows[0], :, :length])
                continue
            if old.device not in indices:
                indices[old.device] = (
                    torch.tensor(rows, device=old.device),
                    torch.tensor(target_rows, device=old.device),
                )
            source_indices, target_indices = indices[old.device]
            new[:, :, :length].index_copy_(0, target_indices, old[:, :, :length].index_select(0, source_indices))


class BucketedKVCache(Cache):  # type: ignore[misc]
    """All buckets, and the location of each sequence. To the model it is a cache that returns new states unchanged."""

    def __init__(self, context_length: int) -> None:
        super().__init__(layers=[])
        self._context_length = context_length
        self._buckets: dict[int, CacheBucket] = {}
        self._locations: dict[int, tuple[CacheBucket, int]] = {}
        self.budget: KVCacheBudget | None = None  # set once the available memory is known

    def locate(self, sequence_id: int) -> tuple[CacheBucket, int]:
        return self._locations[sequence_id]

    def apply(self, operations: Iterable[CacheOp]) -> None:
        """Apply operations in order; consecutive ones of one type together, to touch each layer's tensors once."""
        for kind, group in itertools.groupby(operations, type):
            if kind is Reserve:
                self._reserve(
                    {operation.sequence_id: operation.length for operation in group if isinstance(operation, Reserve)}
                )
            elif kind is Release:
                self._remove_rows(
                    {
                        self._locations.pop(operation.sequence_id)
                        for operation in group
                        if operation.sequence_id in self._locations
                    }
                )
            else:
                for operation in group:
                    self._fork(operation)

    def bytes_per_token(self, sequence_id: int) -> int:
        """Return the bytes of one token of this sequence, over all layers."""
        tensors = [tensor for pair in self._locations[sequence_id][0].layers.values() for tensor in pair]
        return sum(t.shape[1] * t.shape[3] * t.element_size() for t in tensors)

    def free_unused(self, wanted_tokens: float = math.inf, growing: CacheBucket | None = None) -> None:
        """Free unused rows, at least `wanted_tokens` if possible, but not those of the growing bucket."""
        idle = [bucket for bucket in self._buckets.values() if bucket is not growing and bucket.unused_tokens]
        for bucket in sorted(idle, key=lambda bucket: bucket.unused_tokens, reverse=True):
            if wanted_tokens <= 0:
                return
            wanted_tokens -= bucket.unused_tokens
            if bucket.sequence_ids:
                bucket.resize(len(bucket.sequence_ids))
            else:
                del self._buckets[bucket.capacity]

    def clear(self) -> None:
        """Drop all sequences and buckets: after a failure a bucket may be inconsistent."""
        self._buckets.clear()
        self._locations.clear()

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Return the new states unchanged: attention itself reads and writes the buckets."""
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def _reserve(self, lengths: dict[int, int]) -> None:
        """Allocate rows for new sequences, and larger ones for sequences that outgrow their bucket."""
        moves: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (old, new capacity) -> (old, new index)
        for sequence_id, length in lengths.items():
            old = self._locations.get(sequence_id)
            if old is not None and old[0].capacity >= length:
                continue
            capacity = compute_bucket_capacity(length, self._context_length)
            bucket = self._buckets.setdefault(capacity, CacheBucket(capacity))
            index = self._add_row(bucket, sequence_id)
            self._locations[sequence_id] = (bucket, index)
            if old is not None:
                moves.setdefault((old[0].capacity, capacity), []).append((old[1], index))
        for (small, large), pairs in moves.items():
            copy_rows(self._buckets[small], [i for i, _ in pairs], self._buckets[large], [j for _, j in pairs], small)
        # After the copies: filling gaps moves rows.
        self._remove_rows({(self._buckets[small], row) for (small, _), pairs in moves.items() for row, _ in pairs})

    def _fork(self, operation: CacheOp) -> None:
        assert isinstance(operation, Fork)
        self._reserve({operation.copy_id: operation.length})
        (old, i), (new, j) = self._locations[operation.sequence_id], self._locations[operation.copy_id]
        copy_rows(old, [i], new, [j], operation.length)

    def _add_row(self, bucket: CacheBucket, sequence_id: int) -> int:
        if len(bucket.sequence_ids) == bucket.allocated_rows:
            needed = bucket.allocated_rows + 1
            if self.budget is not None:
                self.free_unused(self._count_allocated_tokens() + bucket.capacity - self.budget.tokens, growing=bucket)
            bucket.resize(
                choose_bucket_rows(
                    needed, bucket.allocated_rows, bucket.capacity, self._count_allocated_tokens(), self.budget
                )
            )
        return bucket.add(sequence_id)

    def _count_allocated_tokens(self) -> int:
        return sum(bucket.allocated_rows * bucket.capacity for bucket in self._buckets.values())

    def _remove_rows(self, locations: Collection[tuple[CacheBucket, int]]) -> None:
        """Remove rows that no sequence owns any more."""
        by_capacity: dict[int, list[int]] = {}
        for bucket, index in locations:
            by_capacity.setdefault(bucket.capacity, []).append(index)
        for capacity, indices in by_capacity.items():
            bucket = self._buckets[capacity]
            for sequence_id, index in bucket.remove(indices).items():
                self._locations[sequence_id] = (bucket, index)
            if not bucket.sequence_ids and self.budget is None:
                del self._buckets[capacity]
