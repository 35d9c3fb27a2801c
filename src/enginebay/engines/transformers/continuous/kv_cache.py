"""A KV cache for rows of different lengths that come and go between steps.

Rows stand on shelves: a shelf holds rows of up to its capacity in one tensor per layer, [rows, kv heads, capacity,
head size]. A step writes one position per row in place, and attention reads a view: nothing is concatenated or copied,
except when a row outgrows its shelf or the last rows fill gaps. Short rows never pay for one long neighbour.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

from enginebay.engines.transformers.continuous.kv_cache_budget import KVCacheBudget, choose_bucket_rows
from enginebay.engines.transformers.continuous.scheduler import CacheOp, Fork, Release, Reserve, compute_bucket_capacity

_tensor_versions = itertools.count(1)


class CacheBucket:
    """Rows of one capacity, without gaps: row i is at index i of every layer's tensors."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.sequence_ids: list[int] = []  # row keys in order
        self.layers: dict[int, tuple[Any, Any]] = {}
        self.allocated_rows = 0
        self.tensor_version = 0  # another number means other tensors; no two shelves share one

    @property
    def unused_tokens(self) -> int:
        """Tokens that there is memory for and no row."""
        return (self.allocated_rows - len(self.sequence_ids)) * self.capacity

    def add(self, key: int) -> int:
        self.sequence_ids.append(key)
        return len(self.sequence_ids) - 1

    def remove(self, indices: Collection[int]) -> dict[int, int]:
        """Take rows out; the last rows fill the gaps. Returns the new index of each key that moved."""
        gone, left = set(indices), len(self.sequence_ids) - len(indices)
        gaps = sorted(index for index in gone if index < left)
        movers = [index for index in range(left, len(self.sequence_ids)) if index not in gone]
        moved = {self.sequence_ids[mover]: gap for gap, mover in zip(gaps, movers, strict=True)}
        if moved:
            copy_rows(self, movers, self, gaps, self.capacity)
        for key, gap in moved.items():
            self.sequence_ids[gap] = key
        del self.sequence_ids[left:]
        return moved

    def resize(self, rows: int) -> None:
        """Make room for so many rows; those that are there stay."""
        self.allocated_rows = rows
        self.tensor_version = next(_tensor_versions)
        for layer, pair in self.layers.items():
            self.layers[layer] = (self._resize_tensor(pair[0]), self._resize_tensor(pair[1]))

    def get_tensors(self, layer: int, like_keys: Any, like_values: Any) -> tuple[Any, Any]:
        """This layer's tensors, made on first use: only the model knows their shape, type and device."""
        if layer not in self.layers:
            self.layers[layer] = (self._allocate(like_keys), self._allocate(like_values))
        return self.layers[layer]

    def _allocate(self, like: Any) -> Any:
        # Zeros, not empty: what is masked must still be finite.
        return torch.zeros(
            self.allocated_rows, like.shape[1], self.capacity, like.shape[3], dtype=like.dtype, device=like.device
        )

    def _resize_tensor(self, old: Any) -> Any:
        new = torch.zeros(self.allocated_rows, *old.shape[1:], dtype=old.dtype, device=old.device)
        kept = min(old.shape[0], self.allocated_rows)
        new[:kept] = old[:kept]
        return new


def copy_rows(
    source: CacheBucket, rows: Sequence[int], target: CacheBucket, target_rows: Sequence[int], length: int
) -> None:
    """The first `length` positions of some rows, to rows of the same or another shelf."""
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
            mine, theirs = indices[old.device]
            new[:, :, :length].index_copy_(0, theirs, old[:, :, :length].index_select(0, mine))


class BucketedKVCache(Cache):  # type: ignore[misc]
    """All shelves, and where each row stands. To the model it is a cache that returns new keys and values as they are."""

    def __init__(self, context_length: int) -> None:
        super().__init__(layers=[])
        self._context_length = context_length
        self._buckets: dict[int, CacheBucket] = {}
        self._locations: dict[int, tuple[CacheBucket, int]] = {}
        self.budget: KVCacheBudget | None = None  # set once the memory for it is known

    def locate(self, key: int) -> tuple[CacheBucket, int]:
        return self._locations[key]

    def apply(self, operations: Iterable[CacheOp]) -> None:
        """In order; neighbours of one kind at once, so that each layer's tensors are touched once for all of them."""
        for kind, several in itertools.groupby(operations, type):
            if kind is Reserve:
                self._reserve({one.sequence_id: one.length for one in several if isinstance(one, Reserve)})
            elif kind is Release:
                self._remove_rows(
                    {self._locations.pop(one.sequence_id) for one in several if one.sequence_id in self._locations}
                )
            else:
                for one in several:
                    self._fork(one)

    def bytes_per_token(self, key: int) -> int:
        """Memory of one token of this row, over all layers."""
        tensors = [tensor for pair in self._locations[key][0].layers.values() for tensor in pair]
        return sum(t.shape[1] * t.shape[3] * t.element_size() for t in tensors)

    def free_unused(self, wanted_tokens: float = math.inf, growing: CacheBucket | None = None) -> None:
        """Give back the memory of rows that nobody uses, as many tokens as are wanted; not of the shelf that grows."""
        idle = [shelf for shelf in self._buckets.values() if shelf is not growing and shelf.unused_tokens]
        for shelf in sorted(idle, key=lambda shelf: shelf.unused_tokens, reverse=True):
            if wanted_tokens <= 0:
                return
            wanted_tokens -= shelf.unused_tokens
            if shelf.sequence_ids:
                shelf.resize(len(shelf.sequence_ids))
            else:
                del self._buckets[shelf.capacity]

    def clear(self) -> None:
        """Forget all rows, and the shelves with them: one that broke off while it changed is no longer consistent."""
        self._buckets.clear()
        self._locations.clear()

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Nothing to do here: attention itself writes to the shelves and reads from them."""
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def _reserve(self, lengths: dict[int, int]) -> None:
        """Places for new rows, and larger ones for rows that outgrow their shelf."""
        moves: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (old, new capacity) -> (old, new index)
        for key, length in lengths.items():
            old = self._locations.get(key)
            if old is not None and old[0].capacity >= length:
                continue
            capacity = compute_bucket_capacity(length, self._context_length)
            shelf = self._buckets.setdefault(capacity, CacheBucket(capacity))
            index = self._add_row(shelf, key)
            self._locations[key] = (shelf, index)
            if old is not None:
                moves.setdefault((old[0].capacity, capacity), []).append((old[1], index))
        for (small, large), pairs in moves.items():
            copy_rows(self._buckets[small], [i for i, _ in pairs], self._buckets[large], [j for _, j in pairs], small)
        # Only now: rows that fill gaps would not be where the copies look for them.
        self._remove_rows({(self._buckets[small], row) for (small, _), pairs in moves.items() for row, _ in pairs})

    def _fork(self, operation: CacheOp) -> None:
        assert isinstance(operation, Fork)
        self._reserve({operation.copy_id: operation.length})
        (old, i), (new, j) = self._locations[operation.sequence_id], self._locations[operation.copy_id]
        copy_rows(old, [i], new, [j], operation.length)

    def _add_row(self, shelf: CacheBucket, key: int) -> int:
        if len(shelf.sequence_ids) == shelf.allocated_rows:
            needed = shelf.allocated_rows + 1
            if self.budget is not None:
                self.free_unused(self._count_allocated_tokens() + shelf.capacity - self.budget.tokens, growing=shelf)
            shelf.resize(
                choose_bucket_rows(
                    needed, shelf.allocated_rows, shelf.capacity, self._count_allocated_tokens(), self.budget
                )
            )
        return shelf.add(key)

    def _count_allocated_tokens(self) -> int:
        return sum(shelf.allocated_rows * shelf.capacity for shelf in self._buckets.values())

    def _remove_rows(self, places: Collection[tuple[CacheBucket, int]]) -> None:
        """Take rows, which no key names any more, off their shelves."""
        by_shelf: dict[int, list[int]] = {}
        for shelf, index in places:
            by_shelf.setdefault(shelf.capacity, []).append(index)
        for capacity, indices in by_shelf.items():
            shelf = self._buckets[capacity]
            for key, index in shelf.remove(indices).items():
                self._locations[key] = (shelf, index)
            if not shelf.sequence_ids and self.budget is None:
                del self._buckets[capacity]
