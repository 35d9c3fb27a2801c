"""In which order a step's tokens are computed, and what of them attention takes in one call. Pure: no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enginebay.engines.transformers.schedule import Segment

if TYPE_CHECKING:
    from enginebay.engines.transformers.shelves import Shelf, ShelfCache

_FULL = 0.75  # of the longest prompt in a batch: a shorter one would be mostly padding


@dataclass(frozen=True, slots=True)
class Group:
    """One token for each of some rows of a shelf, in the order they stand there."""

    shelf: Shelf
    indices: list[int]
    segments: list[Segment]
    begin: int  # of its tokens in the step

    @property
    def longest(self) -> int:
        """Cached positions of the longest row, with the token of this step."""
        return max(segment.start for segment in self.segments) + 1

    @property
    def whole(self) -> bool:
        """The shelf's first rows, without a gap."""
        return self.indices[-1] == len(self.indices) - 1


@dataclass(frozen=True, slots=True)
class Prefill:
    """A run of one row's tokens."""

    shelf: Shelf
    row: int
    start: int  # in the row
    begin: int  # in the step
    count: int


@dataclass(frozen=True, slots=True)
class Layout:
    """`order`: the segments as their tokens stand in the step: groups, then batches, then what is computed run by run."""

    order: list[Segment]
    groups: list[Group]
    batches: list[list[Prefill]]  # beginnings of prompts of similar length, all on one shelf
    alone: list[Prefill]


def lay_out(segments: Sequence[Segment], cache: ShelfCache, gather: bool) -> Layout:
    """Put the segments of a step in order. `gather`: prompts of similar length are computed together."""
    by_shelf: dict[int, list[tuple[int, Segment]]] = {}
    runs: list[tuple[Shelf, int, Segment]] = []
    place = cache.place
    for segment in segments:
        shelf, index = place(segment.key)
        if len(segment.tokens) == 1 and segment.start > 0:
            by_shelf.setdefault(shelf.capacity, []).append((index, segment))
        else:
            runs.append((shelf, index, segment))
    order: list[Segment] = []
    groups = []
    for members in by_shelf.values():
        members.sort(key=lambda member: member[0])
        shelf, _ = place(members[0][1].key)
        mine = [segment for _, segment in members]
        groups.append(Group(shelf, [index for index, _ in members], mine, len(order)))
        order += mine
    batched = _similar(runs) if gather else []
    in_batches = {segment.key for batch in batched for _, _, segment in batch}
    single = [run for run in runs if run[2].key not in in_batches]
    begin = len(order)
    placed: list[list[Prefill]] = []
    for batch in (*batched, single):
        placed.append([])
        for shelf, index, segment in batch:
            placed[-1].append(Prefill(shelf, index, segment.start, begin, len(segment.tokens)))
            begin += len(segment.tokens)
            order.append(segment)
    return Layout(order, groups, placed[:-1], placed[-1])


def _similar(runs: Sequence[tuple[Shelf, int, Segment]]) -> list[list[tuple[Shelf, int, Segment]]]:
    """Beginnings of prompts that are worth computing together: on one shelf, none much shorter than the longest."""
    beginnings = [run for run in runs if run[2].start == 0]
    beginnings.sort(key=lambda run: (run[0].capacity, -len(run[2].tokens)))
    batches: list[list[tuple[Shelf, int, Segment]]] = []
    for run in beginnings:
        longest = batches[-1][0] if batches else None
        if longest and longest[0] is run[0] and len(run[2].tokens) >= _FULL * len(longest[2].tokens):
            batches[-1].append(run)
        else:
            batches.append([run])
    return [batch for batch in batches if len(batch) > 1]
