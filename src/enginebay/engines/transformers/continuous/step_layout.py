"""The order of a step's tokens, and how attention groups them. Pure: no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enginebay.engines.transformers.continuous.scheduler import Segment

if TYPE_CHECKING:
    from enginebay.engines.transformers.continuous.kv_cache import BucketedKVCache, CacheBucket

_MIN_FILL_RATIO = 0.75  # of the longest prompt in a batch: shorter prompts would waste padding


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """One token for each of some rows of a bucket, in bucket order."""

    bucket: CacheBucket
    indices: list[int]
    segments: list[Segment]
    token_offset: int  # of its first token in the step

    @property
    def max_length(self) -> int:
        """Length of the longest row, including the token of this step."""
        return max(segment.start for segment in self.segments) + 1

    @property
    def is_contiguous(self) -> bool:
        """Whether these are the first rows of the bucket, without gaps."""
        return self.indices[-1] == len(self.indices) - 1


@dataclass(frozen=True, slots=True)
class PrefillRun:
    """Consecutive prompt tokens of one row."""

    bucket: CacheBucket
    row: int
    start: int  # in the row
    token_offset: int  # in the step
    count: int


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The segments in step order: decode groups, then prefill batches, then single prefills."""

    segments: list[Segment]
    decode_groups: list[DecodeGroup]
    prefill_batches: list[list[PrefillRun]]  # each: prompt starts of similar length in one bucket
    single_prefills: list[PrefillRun]


def build_layout(segments: Sequence[Segment], cache: BucketedKVCache, batch_prefills: bool) -> StepLayout:
    """Order the segments of a step. `batch_prefills`: batch prompts of similar length."""
    by_capacity: dict[int, list[tuple[int, Segment]]] = {}
    runs: list[tuple[CacheBucket, int, Segment]] = []
    for segment in segments:
        bucket, index = cache.locate(segment.sequence_id)
        if len(segment.tokens) == 1 and segment.start > 0:
            by_capacity.setdefault(bucket.capacity, []).append((index, segment))
        else:
            runs.append((bucket, index, segment))
    order: list[Segment] = []
    groups = []
    for members in by_capacity.values():
        members.sort(key=lambda member: member[0])
        bucket, _ = cache.locate(members[0][1].sequence_id)
        group_segments = [segment for _, segment in members]
        groups.append(DecodeGroup(bucket, [index for index, _ in members], group_segments, len(order)))
        order += group_segments
    batched = _batch_similar_prompts(runs) if batch_prefills else []
    batched_ids = {segment.sequence_id for batch in batched for _, _, segment in batch}
    single = [run for run in runs if run[2].sequence_id not in batched_ids]
    offset = len(order)
    prefills: list[list[PrefillRun]] = []
    for batch in (*batched, single):
        prefills.append([])
        for bucket, index, segment in batch:
            prefills[-1].append(PrefillRun(bucket, index, segment.start, offset, len(segment.tokens)))
            offset += len(segment.tokens)
            order.append(segment)
    return StepLayout(order, groups, prefills[:-1], prefills[-1])


def _batch_similar_prompts(
    runs: Sequence[tuple[CacheBucket, int, Segment]],
) -> list[list[tuple[CacheBucket, int, Segment]]]:
    """Batch prompt starts of similar length in one bucket."""
    starts = [run for run in runs if run[2].start == 0]
    starts.sort(key=lambda run: (run[0].capacity, -len(run[2].tokens)))
    batches: list[list[tuple[CacheBucket, int, Segment]]] = []
    for run in starts:
        longest = batches[-1][0] if batches else None
        if longest and longest[0] is run[0] and len(run[2].tokens) >= _MIN_FILL_RATIO * len(longest[2].tokens):
            batches[-1].append(run)
        else:
            batches.append([run])
    return [batch for batch in batches if len(batch) > 1]
