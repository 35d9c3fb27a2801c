"""An LRU cache of captured decode steps, and the padded sizes they are captured with. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

MAX_GRAPHS = 64
_MAX_SEEN_KEYS = 1024
_LENGTH_MULTIPLE = 128

Graph = TypeVar("Graph")


class GraphKey(NamedTuple):
    """The constants of a captured step: its bucket and tensors, its rows, and the length attention reads."""

    capacity: int
    tensor_version: int
    rows: int
    attended_length: int


def pad_row_count(count: int, allocated: int) -> int:
    """Return the captured row count for `count` rows: one of few sizes, at most the allocated rows."""
    step = 8 if count <= 32 else 16 if count <= 64 else 32 if count <= 256 else 64
    return min(allocated, math.ceil(count / step) * step)


def pad_attended_length(longest: int, capacity: int) -> int:
    """Return the captured attention length for rows of up to `longest`: at most four lengths per bucket."""
    stride = max(_LENGTH_MULTIPLE, capacity // 4)
    return min(capacity, math.ceil(longest / stride) * stride)


class GraphCache(Generic[Graph]):
    """The most recently used graphs by key. A step is captured when its key recurs."""

    def __init__(self, max_size: int = MAX_GRAPHS) -> None:
        self._max_size = max_size
        self._entries: OrderedDict[GraphKey, Graph] = OrderedDict()
        self._seen: set[GraphKey] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: GraphKey) -> Graph | None:
        graph = self._entries.get(key)
        if graph is not None:
            self._entries.move_to_end(key)
        return graph

    def should_capture(self, key: GraphKey) -> bool:
        """Return whether this key was seen before, and remember it."""
        if key in self._entries or key in self._seen:
            return True
        if len(self._seen) >= _MAX_SEEN_KEYS:
            self._seen.clear()
        self._seen.add(key)
        return False

    def drop_stale(self, key: GraphKey) -> None:
        """Drop graphs of this bucket's old tensors."""
        stale = [
            old for old in self._entries if old.capacity == key.capacity and old.tensor_version != key.tensor_version
        ]
        for old in stale:
            del self._entries[old]

    def evict_oldest(self) -> None:
        """Make room for one more graph."""
        while len(self._entries) >= self._max_size:
            self._entries.popitem(last=False)

    def put(self, key: GraphKey, graph: Graph) -> None:
        self._entries[key] = graph

    def clear(self) -> None:
        self._entries.clear()
        self._seen.clear()
