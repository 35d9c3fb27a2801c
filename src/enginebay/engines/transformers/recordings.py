"""Which decode steps are recorded, and which recordings are kept. Pure: what a recording is does not matter here."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

MOST_RECORDINGS = 64
_MOST_SEEN = 1024
_STRIDE = 128

Recording = TypeVar("Recording")


class StepKey(NamedTuple):
    """What a recorded step has baked in: the shelf with its tensors, its rows, and how far attention reads."""

    capacity: int
    generation: int
    rows: int
    reach: int


def padded_rows(count: int, allocated: int) -> int:
    """Rows that a step of `count` rows is recorded with: few sizes occur, and all of them are on the shelf."""
    step = 8 if count <= 32 else 16 if count <= 64 else 32 if count <= 256 else 64
    return min(allocated, math.ceil(count / step) * step)


def padded_reach(longest: int, capacity: int) -> int:
    """Positions that attention reads for rows of up to `longest`: at most four lengths for each shelf."""
    stride = max(_STRIDE, capacity // 4)
    return min(capacity, math.ceil(longest / stride) * stride)


class Recordings(Generic[Recording]):
    """Recordings by what is baked into them, the ones used last. A key is worth recording when it comes again."""

    def __init__(self, most: int = MOST_RECORDINGS) -> None:
        self._most = most
        self._kept: OrderedDict[StepKey, Recording] = OrderedDict()
        self._seen: set[StepKey] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: StepKey) -> Recording | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def worth(self, key: StepKey) -> bool:
        """Whether this key has come before; from now on it has."""
        if key in self._kept or key in self._seen:
            return True
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(key)
        return False

    def drop_stale(self, key: StepKey) -> None:
        """Forget recordings of the tensors that this key's shelf no longer has."""
        stale = [old for old in self._kept if old.capacity == key.capacity and old.generation != key.generation]
        for old in stale:
            del self._kept[old]

    def make_room(self) -> None:
        """For one more."""
        while len(self._kept) >= self._most:
            self._kept.popitem(last=False)

    def keep(self, key: StepKey, recording: Recording) -> None:
        self._kept[key] = recording

    def clear(self) -> None:
        self._kept.clear()
        self._seen.clear()
