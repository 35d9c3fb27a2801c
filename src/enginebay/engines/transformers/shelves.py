"""A KV cache for rows of different lengths that come and go between steps.

Rows stand on shelves: a shelf holds rows of up to its capacity in one tensor per layer, [rows, kv heads, capacity,
head size]. A step writes one position per row in place, and attention reads a view: nothing is concatenated or copied,
except when a row outgrows its shelf or the last row fills a gap. Short rows never pay for one long neighbour.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

from enginebay.engines.transformers.schedule import CacheOp, Fork, Release, Reserve, shelf_capacity


class Shelf:
    """Rows of one capacity, without gaps: row i is at index i of every layer's tensors."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.keys: list[int] = []  # row keys in order
        self.layers: dict[int, tuple[Any, Any]] = {}
        self._allocated = 0

    def add(self, key: int) -> int:
        self.keys.append(key)
        if len(self.keys) > self._allocated:
            self._grow()
        return len(self.keys) - 1

    def remove(self, index: int) -> int | None:
        """Take a row out; returns the key of the row that moved into its place, if one did."""
        last = len(self.keys) - 1
        moved = None
        if index != last:
            for keys, values in self.layers.values():
                keys[index].copy_(keys[last])
                values[index].copy_(values[last])
            moved = self.keys[last]
            self.keys[index] = moved
        self.keys.pop()
        if not self.keys:
            self.layers.clear()
            self._allocated = 0
        return moved

    def tensors(self, layer: int, like_keys: Any, like_values: Any) -> tuple[Any, Any]:
        """This layer's tensors, made on first use: only the model knows their shape, type and device."""
        if layer not in self.layers:
            self.layers[layer] = (self._zeros(like_keys), self._zeros(like_values))
        return self.layers[layer]

    def _zeros(self, like: Any) -> Any:
        # Zeros, not empty: what is masked must still be finite.
        return torch.zeros(
            self._allocated, like.shape[1], self.capacity, like.shape[3], dtype=like.dtype, device=like.device
        )

    def _grow(self) -> None:
        self._allocated = max(1, self._allocated * 2)
        for layer, pair in self.layers.items():
            self.layers[layer] = (self._widened(pair[0]), self._widened(pair[1]))

    def _widened(self, old: Any) -> Any:
        new = torch.zeros(self._allocated, *old.shape[1:], dtype=old.dtype, device=old.device)
        new[: old.shape[0]] = old
        return new


class ShelfCache(Cache):  # type: ignore[misc]
    """All shelves, and where each row stands. To the model it is a cache that returns new keys and values as they are."""

    def __init__(self, context_length: int) -> None:
        super().__init__(layers=[])
        self._context_length = context_length
        self._shelves: dict[int, Shelf] = {}
        self._places: dict[int, tuple[Shelf, int]] = {}

    def place(self, key: int) -> tuple[Shelf, int]:
        return self._places[key]

    def apply(self, operation: CacheOp) -> None:
        match operation:
            case Reserve(key, length):
                self._reserve(key, length)
            case Fork(key, copy, length):
                self._reserve(copy, length)
                self._copy(self._places[key], self._places[copy], length)
            case Release(key):
                if key in self._places:
                    self._vacate(key)

    def bytes_per_token(self, key: int) -> int:
        """Memory of one token of this row, over all layers."""
        tensors = [tensor for pair in self._places[key][0].layers.values() for tensor in pair]
        return sum(t.shape[1] * t.shape[3] * t.element_size() for t in tensors)

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Nothing to do here: attention itself writes to the shelves and reads from them."""
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def _reserve(self, key: int, length: int) -> None:
        capacity = shelf_capacity(length, self._context_length)
        old = self._places.get(key)
        if old is not None and old[0].capacity >= length:
            return
        shelf = self._shelves.setdefault(capacity, Shelf(capacity))
        index = shelf.add(key)
        if old is not None:
            self._copy(old, (shelf, index), old[0].capacity)
            self._vacate(key)
        self._places[key] = (shelf, index)

    def _copy(self, source: tuple[Shelf, int], target: tuple[Shelf, int], length: int) -> None:
        (old, i), (new, j) = source, target
        for layer, (keys, values) in old.layers.items():
            new_keys, new_values = new.tensors(layer, keys, values)
            new_keys[j, :, :length].copy_(keys[i, :, :length])
            new_values[j, :, :length].copy_(values[i, :, :length])

    def _vacate(self, key: int) -> None:
        shelf, index = self._places.pop(key)
        moved = shelf.remove(index)
        if moved is not None:
            self._places[moved] = (shelf, index)
        if not shelf.keys:
            self._shelves.pop(shelf.capacity, None)
