"""Which decode steps are recorded, and which recordings are kept. Pure: what a recording is does not matter here."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

MAX_GRAPHS = 64
_MAX_SEEN_KEYS = 1024
_LENGTH_MULTIPLE = 128

Recording = TypeVar("Recording")


class GraphKey(NamedTuple):
    """What a recorded step has baked in: the shelf with its tensors, its rows, and how far attention reads."""

    capacity: int
    tensor_version: int
    rows: int
    attended_length: int


def pad_row_count(count: int, allocated: int) -> int:
    """Rows that a step of `count` rows is recorded with: few sizes occur, and all of them are on the shelf."""
    step = 8 if count <= 32 else 16 if count <= 64 else 32 if count <= 256 else 64
    return min(allocated, math.ceil(count / step) * step)


def pad_attended_length(longest: int, capacity: int) -> int:
    """Positions that attention reads for rows of up to `longest`: at most four lengths for each shelf."""
    stride = max(_LENGTH_MULTIPLE, capacity // 4)
    return min(capacity, math.ceil(longest / stride) * stride)


class GraphCache(Generic[Recording]):
    """Recordings by what is baked into them, the ones used last. A key is worth recording when it comes again."""

    def __init__(self, max_size: int = MAX_GRAPHS) -> None:
        self._max_size = max_size
        self._entries: OrderedDict[GraphKey, Recording] = OrderedDict()
        self._seen: set[GraphKey] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: GraphKey) -> Recording | None:
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def should_capture(self, key: GraphKey) -> bool:
        """Whether this key has come before; from now on it has."""
        if key in self._entries or key in self._seen:
            return True
        if len(self._seen) >= _MAX_SEEN_KEYS:
            self._seen.clear()
        self._seen.add(key)
        return False

    def drop_stale(self, key: GraphKey) -> None:
        """Forget recordings of the tensors that this key's shelf no longer has."""
        stale = [
            old for old in self._entries if old.capacity == key.capacity and old.tensor_version != key.tensor_version
        ]
        for old in stale:
            del self._entries[old]

    def evict_oldest(self) -> None:
        """For one more."""
        while len(self._entries) >= self._max_size:
            self._entries.popitem(last=False)

    def put(self, key: GraphKey, recording: Recording) -> None:
        self._entries[key] = recording

    def clear(self) -> None:
        self._entries.clear()
        self._seen.clear()
