"""Who computes what in the next step of continuous batching."""

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
from tests.unit.engines.transformers.fake_rows import make_row


def schedule(rows: int = 8, step_tokens: int = 64, cached_tokens: int = 100_000) -> StepScheduler:
    return StepScheduler(BatchLimits(rows, step_tokens, cached_tokens, 4096))


def run(plan: StepScheduler) -> ScheduledStep:
    """A step as the engine does it: every wanted segment gives its row a token."""
    step = plan.plan()
    assert step is not None
    plan.commit_step(step)
    rows = {one.sequence_id: one for one in plan.running}
    for segment in step.segments:
        if segment.needs_logits:
            rows[segment.sequence_id].append_and_decode(ord("a"))
    return step


def shape(step: ScheduledStep) -> list[tuple[int, int, int, bool]]:
    return [(s.sequence_id, s.start, len(s.tokens), s.needs_logits) for s in step.segments]


def test_prompts_join_those_who_decode() -> None:
    plan = schedule()
    plan.add(make_row(1, prompt=5))
    assert shape(run(plan)) == [(1, 0, 5, True)]
    plan.add(make_row(2, prompt=3))
    assert shape(run(plan)) == [(1, 5, 1, True), (2, 0, 3, True)]
    assert shape(run(plan)) == [(1, 6, 1, True), (2, 3, 1, True)]


def test_tokens_of_a_step_are_limited() -> None:
    plan = schedule(step_tokens=20)
    for key in range(4):
        plan.add(make_row(key, prompt=8))
    assert shape(run(plan)) == [(0, 0, 8, True), (1, 0, 8, True)]
    assert shape(run(plan)) == [(0, 8, 1, True), (1, 8, 1, True), (2, 0, 8, True), (3, 0, 8, True)]


def test_a_long_prompt_comes_in_pieces_and_others_go_on() -> None:
    plan = schedule(step_tokens=20)
    plan.add(make_row(1, prompt=4))
    run(plan)
    plan.add(make_row(2, prompt=50))
    assert shape(run(plan)) == [(1, 4, 1, True), (2, 0, 19, False)]
    assert shape(run(plan)) == [(1, 5, 1, True), (2, 19, 19, False)]
    assert shape(run(plan)) == [(1, 6, 1, True), (2, 38, 12, True)]
    assert shape(run(plan)) == [(1, 7, 1, True), (2, 50, 1, True)]


def test_no_more_rows_than_promised() -> None:
    plan = schedule(rows=2)
    for key in range(3):
        plan.add(make_row(key))
    assert len(run(plan).segments) == 2
    plan.remove(plan.running[0])
    step = run(plan)
    assert [s.sequence_id for s in step.segments] == [1, 2]
    assert Release(0) in step.operations


def test_a_cancelled_request_is_gone_in_the_next_step() -> None:
    plan = schedule()
    plan.add(make_row(1, number=7))
    plan.add(make_row(2, number=8))
    run(plan)
    plan.add(make_row(3, number=7))
    plan.cancel(7)
    step = run(plan)
    assert [s.sequence_id for s in step.segments] == [2]
    assert Release(1) in step.operations


def test_what_has_ended_is_freed_when_nothing_else_is_to_do() -> None:
    plan = schedule()
    plan.add(make_row(1))
    run(plan)
    plan.remove(plan.running[0])
    step = plan.plan()
    assert step is not None
    assert step.segments == []
    assert step.operations == [Release(1)]
    assert plan.plan() is None


def test_choices_share_the_prompt() -> None:
    plan = schedule()
    leader = make_row(1, prompt=5)
    leader.siblings = [make_row(2, prompt=5, number=1), make_row(3, prompt=5, number=1)]
    plan.add(leader)
    run(plan)
    for sibling in leader.siblings:
        sibling.append_and_decode(ord("b"))
    plan.fork(leader)
    step = run(plan)
    assert step.operations[:2] == [Fork(1, 2, 5), Fork(1, 3, 5)]
    assert shape(step) == [(1, 5, 1, True), (2, 5, 1, True), (3, 5, 1, True)]


def test_choices_without_room_queue_first_and_compute_for_themselves() -> None:
    plan = schedule(rows=1)
    leader, sibling = make_row(1, prompt=5), make_row(2, prompt=5, number=1)
    leader.siblings = [sibling]
    plan.add(leader)
    plan.add(make_row(9, prompt=5))
    run(plan)
    sibling.append_and_decode(ord("b"))
    plan.fork(leader)
    plan.remove(leader)
    assert shape(run(plan)) == [(2, 0, 6, True)]


def test_rows_that_outgrow_the_memory_are_computed_again_later() -> None:
    plan = schedule(rows=2, step_tokens=2000, cached_tokens=800)
    first, second = make_row(1, prompt=250), make_row(2, prompt=250)
    plan.add(first)
    plan.add(second)
    while plan.running.count(second) or not second.output:
        run(plan)
    assert plan.running == [first]
    assert second.cached_tokens == 0
    plan.remove(first)
    assert shape(run(plan)) == [(2, 0, second.length - 1, True)]


def test_one_row_always_runs_whatever_the_memory() -> None:
    plan = schedule(cached_tokens=1)
    plan.add(make_row(1, prompt=300))
    plan.add(make_row(2, prompt=3))
    run(plan)
    assert [one.sequence_id for one in plan.running] == [1]


def test_adapters_take_turns() -> None:
    plan = schedule()
    plan.add(make_row(1, lora="b"))
    plan.add(make_row(2))
    plan.add(make_row(3, lora="a"))
    order = [(step.lora, [s.sequence_id for s in step.segments]) for step in (run(plan) for _ in range(4))]
    assert order == [(None, [2]), ("a", [3]), ("b", [1]), (None, [2])]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("rows", "cached_tokens"), [(2, 100_000), (8, 600)])
def test_an_adapter_without_room_is_passed_over(apart: bool, rows: int, cached_tokens: int) -> None:
    """Its rows wait for those of others to end: these must go on meanwhile."""
    plan = schedule(rows=rows, cached_tokens=cached_tokens)
    plan.separate_prefill = apart
    plan.add(make_row(1))
    plan.add(make_row(2))
    run(plan)
    plan.add(make_row(3, lora="a"))
    for _ in range(5):
        step = run(plan)
        assert (step.lora, [s.sequence_id for s in step.segments]) == (None, [1, 2])
    plan.add(make_row(4))
    plan.remove(plan.running[0])
    step = run(plan)
    assert (step.lora, [s.sequence_id for s in step.segments]) == ("a", [3])  # it was its turn all the time


def test_a_row_reserves_again_when_it_outgrows_its_shelf() -> None:
    plan = schedule(step_tokens=300)
    plan.add(make_row(1, prompt=255))
    assert run(plan).operations == [Reserve(1, 255)]
    assert run(plan).operations == []
    assert run(plan).operations == [Reserve(1, 257)]


def test_a_row_that_lost_its_cache_reserves_anew() -> None:
    plan = schedule()
    one = make_row(1, prompt=5)
    plan.add(one)
    run(plan)
    plan.remove(one)
    one.cached_tokens = 0
    plan.add(one)
    assert run(plan).operations == [Release(1), Reserve(1, 6)]


def test_a_choice_that_was_copied_reserves_when_it_outgrows_its_copy() -> None:
    plan = schedule(step_tokens=300)
    leader, sibling = make_row(1, prompt=256), make_row(2, prompt=256, number=1)
    leader.siblings = [sibling]
    plan.add(leader)
    run(plan)
    sibling.append_and_decode(ord("b"))
    plan.fork(leader)
    assert run(plan).operations == [Fork(1, 2, 256), Reserve(1, 257), Reserve(2, 257)]


def test_all_that_has_ended_goes_at_once() -> None:
    plan = schedule()
    rows = [make_row(key, max_tokens=1 + key % 2) for key in range(4)]
    for one in rows:
        plan.add(one)
    run(plan)
    plan.remove_finished()
    assert [one.sequence_id for one in plan.running] == [1, 3]
    assert plan.operations == [Release(0), Release(2)]


def test_shelves_double() -> None:
    sizes: list[Any] = [compute_bucket_capacity(length, 3000) for length in (1, 256, 257, 1024, 1025, 2049, 3000)]
    assert sizes == [256, 256, 512, 1024, 2048, 3000, 3000]


def test_a_shelf_is_never_too_small() -> None:
    assert all(
        compute_bucket_capacity(length, context) >= length for context in (100, 300) for length in range(1, context + 1)
    )


def everything(rows: list[SequenceState], plan: StepScheduler) -> int:
    steps = 0
    for one in rows:
        plan.add(one)
    while plan.running or plan.waiting:
        run(plan)
        steps += 1
        for one in [one for one in plan.running if one.finish_reason]:
            plan.remove(one)
        assert len(plan.running) <= plan.limits.max_sequences
        assert steps < 5000
    return steps


def test_nobody_starves() -> None:
    rows = [make_row(i, prompt=1 + 37 * i % 200, lora=("x", None)[i % 2], max_tokens=1 + i % 9) for i in range(60)]
    everything(rows, schedule(rows=5, step_tokens=32, cached_tokens=1500))
    assert all(len(one.output) == one.max_output_tokens for one in rows)
