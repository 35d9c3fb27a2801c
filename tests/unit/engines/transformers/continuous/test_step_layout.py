"""The order of a step's tokens, and which prompts are computed together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from enginebay.engines.transformers.continuous.scheduler import Segment
from enginebay.engines.transformers.continuous.step_layout import StepLayout, build_layout

SMALL, LARGE = SimpleNamespace(capacity=256), SimpleNamespace(capacity=512)


class Places:
    """Row n stands at index n % 100, on the large shelf from 100 on."""

    def locate(self, key: int) -> tuple[Any, int]:
        return (LARGE if key >= 100 else SMALL), key % 100


def decode(key: int, start: int = 9) -> Segment:
    return Segment(key, start, [key], True)


def prompt(key: int, count: int, start: int = 0) -> Segment:
    return Segment(key, start, [key] * count, True)


def laid(*segments: Segment, gather: bool = True) -> StepLayout:
    return build_layout(segments, Places(), gather)  # type: ignore[arg-type]


def test_rows_that_decode_stand_as_on_their_shelves() -> None:
    layout = laid(decode(2), decode(101), decode(0, start=30), decode(100), decode(1))
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


def test_rows_with_a_gap_are_not_whole() -> None:
    assert not laid(decode(0), decode(2)).decode_groups[0].is_contiguous
    assert not laid(decode(1)).decode_groups[0].is_contiguous


def test_a_prompt_of_one_token_does_not_decode() -> None:
    layout = laid(prompt(3, 1), gather=False)
    assert layout.decode_groups == [] and [run.row for run in layout.single_prefills] == [3]


def test_prompts_of_similar_length_make_batches() -> None:
    layout = laid(prompt(0, 90), decode(5), prompt(1, 10), prompt(2, 100), prompt(3, 75), prompt(4, 9), prompt(6, 50))
    lengths = [[run.count for run in runs] for runs in layout.prefill_batches]
    assert lengths == [[100, 90, 75], [10, 9]]
    assert [run.count for run in layout.single_prefills] == [50]


def test_every_token_has_one_place() -> None:
    layout = laid(decode(7), prompt(0, 90), prompt(101, 260), prompt(1, 80), prompt(102, 300), prompt(3, 5, start=64))
    runs = [run for batch in layout.prefill_batches for run in batch] + layout.single_prefills
    at = 1
    for run, segment in zip(runs, layout.segments[1:], strict=True):
        assert (run.token_offset, run.count, run.row) == (at, len(segment.tokens), segment.sequence_id % 100)
        at += run.count
    assert [{run.bucket.capacity for run in batch} for batch in layout.prefill_batches] == [{256}, {512}]


def test_what_goes_on_in_the_middle_of_a_prompt_is_alone() -> None:
    layout = laid(prompt(0, 50, start=64), prompt(1, 50, start=64))
    assert layout.prefill_batches == [] and len(layout.single_prefills) == 2


def test_nothing_is_gathered_unasked() -> None:
    layout = laid(prompt(0, 50), prompt(1, 50), gather=False)
    assert layout.prefill_batches == [] and [run.token_offset for run in layout.single_prefills] == [0, 50]
