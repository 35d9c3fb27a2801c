"""The order of a step's tokens, and which prompts are batched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from enginebay.engines.transformers.continuous.scheduler import Segment
from enginebay.engines.transformers.continuous.step_layout import StepLayout, build_layout

SMALL, LARGE = SimpleNamespace(capacity=256), SimpleNamespace(capacity=512)


class FakeCache:
    """Sequence n is row n % 100, in the large bucket from 100 on."""

    def locate(self, sequence_id: int) -> tuple[Any, int]:
        return (LARGE if sequence_id >= 100 else SMALL), sequence_id % 100


def decode(key: int, start: int = 9) -> Segment:
    return Segment(key, start, [key], True)


def prompt(key: int, count: int, start: int = 0) -> Segment:
    return Segment(key, start, [key] * count, True)


def lay_out(*segments: Segment, batch_prefills: bool = True) -> StepLayout:
    return build_layout(segments, FakeCache(), batch_prefills)  # type: ignore[arg-type]


def test_decoding_rows_are_in_bucket_order() -> None:
    layout = lay_out(decode(2), decode(101), decode(0, start=30), decode(100), decode(1))
    assert [segment.sequence_id for segment in layout.segments] == [0, 1, 2, 100, 101]
    small, large = layout.decode_groups
    assert (small.bucket, small.indices, small.token_offset, small.max_length, small.is_contiguous) == (
        SMALL,
        [0, 1, 2],
        0,
        31,
        True,
    )
    assert (large.bucket, large.indices, large.token_offset, large.max_length, large.is_contiguous) == (
        LARGE,
        [0, 1],
        3,
        10,
        True,
    )


def test_rows_with_a_gap_are_not_contiguous() -> None:
    assert not lay_out(decode(0), decode(2)).decode_groups[0].is_contiguous
    assert not lay_out(decode(1)).decode_groups[0].is_contiguous


def test_a_prompt_of_one_token_does_not_decode() -> None:
    layout = lay_out(prompt(3, 1), batch_prefills=False)
    assert layout.decode_groups == [] and [run.row for run in layout.single_prefills] == [3]


def test_prompts_of_similar_length_make_batches() -> None:
    layout = lay_out(
        prompt(0, 90), decode(5), prompt(1, 10), prompt(2, 100), prompt(3, 75), prompt(4, 9), prompt(6, 50)
    )
    lengths = [[run.count for run in runs] for runs in layout.prefill_batches]
    assert lengths == [[100, 90, 75], [10, 9]]
    assert [run.count for run in layout.single_prefills] == [50]


def test_every_token_has_one_position() -> None:
    layout = lay_out(
        decode(7), prompt(0, 90), prompt(101, 260), prompt(1, 80), prompt(102, 300), prompt(3, 5, start=64)
    )
    runs = [run for batch in layout.prefill_batches for run in batch] + layout.single_prefills
    offset = 1
    for run, segment in zip(runs, layout.segments[1:], strict=True):
        assert (run.token_offset, run.count, run.row) == (offset, len(segment.tokens), segment.sequence_id % 100)
        offset += run.count
    assert [{run.bucket.capacity for run in batch} for batch in layout.prefill_batches] == [{256}, {512}]


def test_prompt_continuations_are_not_batched() -> None:
    layout = lay_out(prompt(0, 50, start=64), prompt(1, 50, start=64))
    assert layout.prefill_batches == [] and len(layout.single_prefills) == 2


def test_prefills_are_batched_only_on_request() -> None:
    layout = lay_out(prompt(0, 50), prompt(1, 50), batch_prefills=False)
    assert layout.prefill_batches == [] and [run.token_offset for run in layout.single_prefills] == [0, 50]
