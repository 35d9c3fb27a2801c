"""The scheduler of continuous batching."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.engines.transformers.continuous.scheduler import (
    BatchLimits,
    Fork,
    Release,
    Reserve,
    ScheduledStep,
    StepScheduler,
    compute_bucket_capacity,
)
from enginebay.engines.transformers.decoding.sequence_state import SequenceState
from tests.unit.engines.transformers.fake_sequences import append_and_decode, make_sequence


def make_scheduler(max_sequences: int = 8, step_tokens: int = 64, cached_tokens: int = 100_000) -> StepScheduler:
    return StepScheduler(BatchLimits(max_sequences, step_tokens, cached_tokens, 4096))


def run(scheduler: StepScheduler) -> ScheduledStep:
    """Run a step as the engine does: every segment that needs logits adds a token."""
    step = scheduler.plan()
    assert step is not None
    scheduler.commit_step(step)
    sequences = {sequence.sequence_id: sequence for sequence in scheduler.running}
    for segment in step.segments:
        if segment.needs_logits:
            append_and_decode(sequences[segment.sequence_id], ord("a"))
    return step


def shape(step: ScheduledStep) -> list[tuple[int, int, int, bool]]:
    return [(s.sequence_id, s.start, len(s.tokens), s.needs_logits) for s in step.segments]


def test_prompts_join_decoding_sequences() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, prompt=5))
    assert shape(run(scheduler)) == [(1, 0, 5, True)]
    scheduler.add(make_sequence(2, prompt=3))
    assert shape(run(scheduler)) == [(1, 5, 1, True), (2, 0, 3, True)]
    assert shape(run(scheduler)) == [(1, 6, 1, True), (2, 3, 1, True)]


def test_tokens_of_a_step_are_limited() -> None:
    scheduler = make_scheduler(step_tokens=20)
    for key in range(4):
        scheduler.add(make_sequence(key, prompt=8))
    assert shape(run(scheduler)) == [(0, 0, 8, True), (1, 0, 8, True)]
    assert shape(run(scheduler)) == [(0, 8, 1, True), (1, 8, 1, True), (2, 0, 8, True), (3, 0, 8, True)]


def test_a_long_prompt_comes_in_pieces_and_others_go_on() -> None:
    scheduler = make_scheduler(step_tokens=20)
    scheduler.add(make_sequence(1, prompt=4))
    run(scheduler)
    scheduler.add(make_sequence(2, prompt=50))
    assert shape(run(scheduler)) == [(1, 4, 1, True), (2, 0, 19, False)]
    assert shape(run(scheduler)) == [(1, 5, 1, True), (2, 19, 19, False)]
    assert shape(run(scheduler)) == [(1, 6, 1, True), (2, 38, 12, True)]
    assert shape(run(scheduler)) == [(1, 7, 1, True), (2, 50, 1, True)]


def test_running_sequences_are_limited() -> None:
    scheduler = make_scheduler(max_sequences=2)
    for key in range(3):
        scheduler.add(make_sequence(key))
    assert len(run(scheduler).segments) == 2
    scheduler.remove(scheduler.running[0])
    step = run(scheduler)
    assert [s.sequence_id for s in step.segments] == [1, 2]
    assert Release(0) in step.operations


def test_a_cancelled_request_is_gone_in_the_next_step() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, number=7))
    scheduler.add(make_sequence(2, number=8))
    run(scheduler)
    scheduler.add(make_sequence(3, number=7))
    scheduler.cancel(7)
    step = run(scheduler)
    assert [s.sequence_id for s in step.segments] == [2]
    assert Release(1) in step.operations


def test_an_idle_step_releases_finished_sequences() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1))
    run(scheduler)
    scheduler.remove(scheduler.running[0])
    step = scheduler.plan()
    assert step is not None
    assert step.segments == []
    assert step.operations == [Release(1)]
    assert scheduler.plan() is None


def test_choices_share_the_prompt() -> None:
    scheduler = make_scheduler()
    leader = make_sequence(1, prompt=5)
    leader.siblings = [make_sequence(2, prompt=5, number=1), make_sequence(3, prompt=5, number=1)]
    scheduler.add(leader)
    run(scheduler)
    for sibling in leader.siblings:
        append_and_decode(sibling, ord("b"))
    scheduler.fork(leader)
    step = run(scheduler)
    assert step.operations[:2] == [Fork(1, 2, 5), Fork(1, 3, 5)]
    assert shape(step) == [(1, 5, 1, True), (2, 5, 1, True), (3, 5, 1, True)]


def test_choices_without_capacity_queue_first_and_prefill_themselves() -> None:
    scheduler = make_scheduler(max_sequences=1)
    leader, sibling = make_sequence(1, prompt=5), make_sequence(2, prompt=5, number=1)
    leader.siblings = [sibling]
    scheduler.add(leader)
    scheduler.add(make_sequence(9, prompt=5))
    run(scheduler)
    append_and_decode(sibling, ord("b"))
    scheduler.fork(leader)
    scheduler.remove(leader)
    assert shape(run(scheduler)) == [(2, 0, 6, True)]


def test_preempted_sequences_are_prefilled_again() -> None:
    scheduler = make_scheduler(max_sequences=2, step_tokens=2000, cached_tokens=800)
    first, second = make_sequence(1, prompt=250), make_sequence(2, prompt=250)
    scheduler.add(first)
    scheduler.add(second)
    while scheduler.running.count(second) or not second.output:
        run(scheduler)
    assert scheduler.running == [first]
    assert second.cached_tokens == 0
    scheduler.remove(first)
    assert shape(run(scheduler)) == [(2, 0, second.length - 1, True)]


def test_one_sequence_always_runs() -> None:
    scheduler = make_scheduler(cached_tokens=1)
    scheduler.add(make_sequence(1, prompt=300))
    scheduler.add(make_sequence(2, prompt=3))
    run(scheduler)
    assert [sequence.sequence_id for sequence in scheduler.running] == [1]


def test_adapters_take_turns() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, lora="b"))
    scheduler.add(make_sequence(2))
    scheduler.add(make_sequence(3, lora="a"))
    order = [(step.lora, [s.sequence_id for s in step.segments]) for step in (run(scheduler) for _ in range(4))]
    assert order == [(None, [2]), ("a", [3]), ("b", [1]), (None, [2])]


@pytest.mark.parametrize("separate_prefill", [False, True])
@pytest.mark.parametrize(("max_sequences", "cached_tokens"), [(2, 100_000), (8, 600)])
def test_an_adapter_without_capacity_is_skipped(separate_prefill: bool, max_sequences: int, cached_tokens: int) -> None:
    """Sequences of other adapters continue while it waits."""
    scheduler = make_scheduler(max_sequences=max_sequences, cached_tokens=cached_tokens)
    scheduler.separate_prefill = separate_prefill
    scheduler.add(make_sequence(1))
    scheduler.add(make_sequence(2))
    run(scheduler)
    scheduler.add(make_sequence(3, lora="a"))
    for _ in range(5):
        step = run(scheduler)
        assert (step.lora, [s.sequence_id for s in step.segments]) == (None, [1, 2])
    scheduler.add(make_sequence(4))
    scheduler.remove(scheduler.running[0])
    step = run(scheduler)
    assert (step.lora, [s.sequence_id for s in step.segments]) == ("a", [3])  # it stayed next in turn


def test_a_sequence_reserves_again_when_it_outgrows_its_bucket() -> None:
    scheduler = make_scheduler(step_tokens=300)
    scheduler.add(make_sequence(1, prompt=255))
    assert run(scheduler).operations == [Reserve(1, 255)]
    assert run(scheduler).operations == []
    assert run(scheduler).operations == [Reserve(1, 257)]


def test_a_preempted_sequence_reserves_again() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence(1, prompt=5)
    scheduler.add(sequence)
    run(scheduler)
    scheduler.remove(sequence)
    sequence.cached_tokens = 0
    scheduler.add(sequence)
    assert run(scheduler).operations == [Release(1), Reserve(1, 6)]


def test_a_choice_that_was_copied_reserves_when_it_outgrows_its_copy() -> None:
    scheduler = make_scheduler(step_tokens=300)
    leader, sibling = make_sequence(1, prompt=256), make_sequence(2, prompt=256, number=1)
    leader.siblings = [sibling]
    scheduler.add(leader)
    run(scheduler)
    append_and_decode(sibling, ord("b"))
    scheduler.fork(leader)
    assert run(scheduler).operations == [Fork(1, 2, 256), Reserve(1, 257), Reserve(2, 257)]


def test_all_finished_sequences_are_released_together() -> None:
    scheduler = make_scheduler()
    for key in range(4):
        scheduler.add(make_sequence(key, max_tokens=1 + key % 2))
    run(scheduler)
    scheduler.remove_finished()
    assert [sequence.sequence_id for sequence in scheduler.running] == [1, 3]
    assert scheduler.operations == [Release(0), Release(2)]


def test_bucket_capacities_double() -> None:
    sizes: list[Any] = [compute_bucket_capacity(length, 3000) for length in (1, 256, 257, 1024, 1025, 2049, 3000)]
    assert sizes == [256, 256, 512, 1024, 2048, 3000, 3000]


def test_a_bucket_is_never_too_small() -> None:
    assert all(
        compute_bucket_capacity(length, context) >= length for context in (100, 300) for length in range(1, context + 1)
    )


def run_to_end(sequences: list[SequenceState], scheduler: StepScheduler) -> int:
    steps = 0
    for sequence in sequences:
        scheduler.add(sequence)
    while scheduler.running or scheduler.waiting:
        run(scheduler)
        steps += 1
        for sequence in [sequence for sequence in scheduler.running if sequence.finish_reason]:
            scheduler.remove(sequence)
        assert len(scheduler.running) <= scheduler.limits.max_sequences
        assert steps < 5000
    return steps


def test_nobody_starves() -> None:
    sequences = [
        make_sequence(i, prompt=1 + 37 * i % 200, lora=("x", None)[i % 2], max_tokens=1 + i % 9) for i in range(60)
    ]
    run_to_end(sequences, make_scheduler(max_sequences=5, step_tokens=32, cached_tokens=1500))
    assert all(len(sequence.output) == sequence.max_output_tokens for sequence in sequences)
