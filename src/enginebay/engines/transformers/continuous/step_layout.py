"""In which order a step's tokens are computed, and what of them attention takes in one call. Pure: no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enginebay.engines.transformers.continuous.scheduler import Segment

if TYPE_CHECKING:
    from enginebay.engines.transformers.continuous.kv_cache import BucketedKVCache, CacheBucket

_MIN_FILL_RATIO = 0.75  # of the longest prompt in a batch: a shorter one would be mostly padding


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """One token for each of some rows of a shelf, in the order they stand there."""

    bucket: CacheBucket
    indices: list[int]
    segments: list[Segment]
    token_offset: int  # of its tokens in the step

    @property
    def max_length(self) -> int:
        """Cached positions of the longest row, with the token of this step."""
        return max(segment.start for segment in self.segments) + 1

    @property
    def is_contiguous(self) -> bool:
        """The shelf's first rows, without a gap."""
        return self.indices[-1] == len(self.indices) - 1


@dataclass(frozen=True, slots=True)
class PrefillRun:
    """A run of one row's tokens."""

    bucket: CacheBucket
    row: int
    start: int  # in the row
    token_offset: int  # in the step
    count: int


@dataclass(frozen=True, slots=True)
class StepLayout:
    """`order`: the segments as their tokens stand in the step: groups, then batches, then what is computed run by run."""

    segments: list[Segment]
    decode_groups: list[DecodeGroup]
    prefill_batches: list[list[PrefillRun]]  # beginnings of prompts of similar length, all on one shelf
    single_prefills: list[PrefillRun]


def build_layout(segments: Sequence[Segment], cache: BucketedKVCache, batch_prefills: bool) -> StepLayout:
    """Put the segments of a step in order. `gather`: prompts of similar length are computed together."""
    by_shelf: dict[int, list[tuple[int, Segment]]] = {}
    runs: list[tuple[CacheBucket, int, Segment]] = []
    place = cache.locate
    for segment in segments:
        shelf, index = place(segment.sequence_id)
        if len(segment.tokens) == 1 and segment.start > 0:
            by_shelf.setdefault(shelf.capacity, []).append((index, segment))
        else:
            runs.append((shelf, index, segment))
    order: list[Segment] = []
    groups = []
    for members in by_shelf.values():
        members.sort(key=lambda member: member[0])
        shelf, _ = place(members[0][1].sequence_id)
        mine = [segment for _, segment in members]
        groups.append(DecodeGroup(shelf, [index for index, _ in members], mine, len(order)))
        order += mine
    batched = _batch_similar_prompts(runs) if batch_prefills else []
    in_batches = {segment.sequence_id for batch in batched for _, _, segment in batch}
    single = [run for run in runs if run[2].sequence_id not in in_batches]
    begin = len(order)
    placed: list[list[PrefillRun]] = []
    for batch in (*batched, single):
        placed.append([])
        for shelf, index, segment in batch:
            placed[-1].append(PrefillRun(shelf, index, segment.start, begin, len(segment.tokens)))
            begin += len(segment.tokens)
            order.append(segment)
    return StepLayout(order, groups, placed[:-1], placed[-1])


def _batch_similar_prompts(
    runs: Sequence[tuple[CacheBucket, int, Segment]],
) -> list[list[tuple[CacheBucket, int, Segment]]]:
    """Beginnings of prompts that are worth computing together: on one shelf, none much shorter than the longest."""
    beginnings = [run for run in runs if run[2].start == 0]
    beginnings.sort(key=lambda run: (run[0].capacity, -len(run[2].tokens)))
    batches: list[list[tuple[CacheBucket, int, Segment]]] = []
    for run in beginnings:
        longest = batches[-1][0] if batches else None
        if longest and longest[0] is run[0] and len(run[2].tokens) >= _MIN_FILL_RATIO * len(longest[2].tokens):
            batches[-1].append(run)
        else:
            batches.append([run])
    return [batch for batch in batches if len(batch) > 1]
