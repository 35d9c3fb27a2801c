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

from enginebay.engines.transformers.room import Room, rows_for
from enginebay.engines.transformers.schedule import CacheOp, Fork, Release, Reserve, shelf_capacity

_generations = itertools.count(1)


class Shelf:
    """Rows of one capacity, without gaps: row i is at index i of every layer's tensors."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.keys: list[int] = []  # row keys in order
        self.layers: dict[int, tuple[Any, Any]] = {}
        self.allocated = 0
        self.generation = 0  # another number means other tensors; no two shelves share one

    @property
    def unused(self) -> int:
        """Tokens that there is memory for and no row."""
        return (self.allocated - len(self.keys)) * self.capacity

    def add(self, key: int) -> int:
        self.keys.append(key)
        return len(self.keys) - 1

    def remove(self, indices: Collection[int]) -> dict[int, int]:
        """Take rows out; the last rows fill the gaps. Returns the new index of each key that moved."""
        gone, left = set(indices), len(self.keys) - len(indices)
        gaps = sorted(index for index in gone if index < left)
        movers = [index for index in range(left, len(self.keys)) if index not in gone]
        moved = {self.keys[mover]: gap for gap, mover in zip(gaps, movers, strict=True)}
        if moved:
            copy_rows(self, movers, self, gaps, self.capacity)
        for key, gap in moved.items():
            self.keys[gap] = key
        del self.keys[left:]
        return moved

    def resize(self, rows: int) -> None:
        """Make room for so many rows; those that are there stay."""
        self.allocated = rows
        self.generation = next(_generations)
        for layer, pair in self.layers.items():
            self.layers[layer] = (self._resized(pair[0]), self._resized(pair[1]))

    def tensors(self, layer: int, like_keys: Any, like_values: Any) -> tuple[Any, Any]:
        """This layer's tensors, made on first use: only the model knows their shape, type and device."""
        if layer not in self.layers:
            self.layers[layer] = (self._zeros(like_keys), self._zeros(like_values))
        return self.layers[layer]

    def _zeros(self, like: Any) -> Any:
        # Zeros, not empty: what is masked must still be finite.
        return torch.zeros(
            self.allocated, like.shape[1], self.capacity, like.shape[3], dtype=like.dtype, device=like.device
        )

    def _resized(self, old: Any) -> Any:
        new = torch.zeros(self.allocated, *old.shape[1:], dtype=old.dtype, device=old.device)
        kept = min(old.shape[0], self.allocated)
        new[:kept] = old[:kept]
        return new


def copy_rows(source: Shelf, rows: Sequence[int], target: Shelf, places: Sequence[int], length: int) -> None:
    """The first `length` positions of some rows, to rows of the same or another shelf."""
    indices: dict[Any, tuple[Any, Any]] = {}
    for layer, pair in source.layers.items():
        for old, new in zip(pair, target.tensors(layer, *pair), strict=True):
            if len(rows) == 1:
                new[places[0], :, :length].copy_(old[rows[0], :, :length])
                continue
            if old.device not in indices:
                indices[old.device] = (torch.tensor(rows, device=old.device), torch.tensor(places, device=old.device))
            mine, theirs = indices[old.device]
            new[:, :, :length].index_copy_(0, theirs, old[:, :, :length].index_select(0, mine))


class ShelfCache(Cache):  # type: ignore[misc]
    """All shelves, and where each row stands. To the model it is a cache that returns new keys and values as they are."""

    def __init__(self, context_length: int) -> None:
        super().__init__(layers=[])
        self._context_length = context_length
        self._shelves: dict[int, Shelf] = {}
        self._places: dict[int, tuple[Shelf, int]] = {}
        self.room: Room | None = None  # set once the memory for it is known

    def place(self, key: int) -> tuple[Shelf, int]:
        return self._places[key]

    def apply(self, operations: Iterable[CacheOp]) -> None:
        """In order; neighbours of one kind at once, so that each layer's tensors are touched once for all of them."""
        for kind, several in itertools.groupby(operations, type):
            if kind is Reserve:
                self._reserve({one.key: one.length for one in several if isinstance(one, Reserve)})
            elif kind is Release:
                self._vacate({self._places.pop(one.key) for one in several if one.key in self._places})
            else:
                for one in several:
                    self._fork(one)

    def bytes_per_token(self, key: int) -> int:
        """Memory of one token of this row, over all layers."""
        tensors = [tensor for pair in self._places[key][0].layers.values() for tensor in pair]
        return sum(t.shape[1] * t.shape[3] * t.element_size() for t in tensors)

    def free_unused(self, wanted: float = math.inf, growing: Shelf | None = None) -> None:
        """Give back the memory of rows that nobody uses, as many tokens as are wanted; not of the shelf that grows."""
        idle = [shelf for shelf in self._shelves.values() if shelf is not growing and shelf.unused]
        for shelf in sorted(idle, key=lambda shelf: shelf.unused, reverse=True):
            if wanted <= 0:
                return
            wanted -= shelf.unused
            if shelf.keys:
                shelf.resize(len(shelf.keys))
            else:
                del self._shelves[shelf.capacity]

    def clear(self) -> None:
        """Forget all rows, and the shelves with them: one that broke off while it changed is no longer consistent."""
        self._shelves.clear()
        self._places.clear()

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Nothing to do here: attention itself writes to the shelves and reads from them."""
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def _reserve(self, lengths: dict[int, int]) -> None:
        """Places for new rows, and larger ones for rows that outgrow their shelf."""
        moves: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (old, new capacity) -> (old, new index)
        for key, length in lengths.items():
            old = self._places.get(key)
            if old is not None and old[0].capacity >= length:
                continue
            capacity = shelf_capacity(length, self._context_length)
            shelf = self._shelves.setdefault(capacity, Shelf(capacity))
            index = self._add(shelf, key)
            self._places[key] = (shelf, index)
            if old is not None:
                moves.setdefault((old[0].capacity, capacity), []).append((old[1], index))
        for (small, large), pairs in moves.items():
            copy_rows(self._shelves[small], [i for i, _ in pairs], self._shelves[large], [j for _, j in pairs], small)
        # Only now: rows that fill gaps would not be where the copies look for them.
        self._vacate({(self._shelves[small], row) for (small, _), pairs in moves.items() for row, _ in pairs})

    def _fork(self, operation: CacheOp) -> None:
        assert isinstance(operation, Fork)
        self._reserve({operation.copy: operation.length})
        (old, i), (new, j) = self._places[operation.key], self._places[operation.copy]
        copy_rows(old, [i], new, [j], operation.length)

    def _add(self, shelf: Shelf, key: int) -> int:
        if len(shelf.keys) == shelf.allocated:
            needed = shelf.allocated + 1
            if self.room is not None:
                self.free_unused(self._taken() + shelf.capacity - self.room.tokens, growing=shelf)
            shelf.resize(rows_for(needed, shelf.allocated, shelf.capacity, self._taken(), self.room))
        return shelf.add(key)

    def _taken(self) -> int:
        return sum(shelf.allocated * shelf.capacity for shelf in self._shelves.values())

    def _vacate(self, places: Collection[tuple[Shelf, int]]) -> None:
        """Take rows, which no key names any more, off their shelves."""
        by_shelf: dict[int, list[int]] = {}
        for shelf, index in places:
            by_shelf.setdefault(shelf.capacity, []).append(index)
        for capacity, indices in by_shelf.items():
            shelf = self._shelves[capacity]
            for key, index in shelf.remove(indices).items():
                self._places[key] = (shelf, index)
            if not shelf.keys and self.room is None:
                del self._shelves[capacity]
