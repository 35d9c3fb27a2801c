"""Separate steps for prefill and decode."""

from __future__ import annotations

import pytest

from enginebay.engines.transformers.continuous.scheduler import (
    DECODES_PER_PREFILL,
    MAX_PREFILL_BURST,
    MAX_PREFILL_WAIT_STEPS,
    ScheduledStep,
    StepScheduler,
    should_prefill,
)
from tests.unit.engines.transformers.continuous.test_scheduler import make_scheduler, run, run_to_end, shape
from tests.unit.engines.transformers.fake_sequences import make_sequence


def make_separate(max_sequences: int = 64, step_tokens: int = 64, cached_tokens: int = 1_000_000) -> StepScheduler:
    scheduler = make_scheduler(max_sequences, step_tokens, cached_tokens)
    scheduler.separate_prefill = True
    return scheduler


def kind(step: ScheduledStep) -> str:
    """Return p for a prefill step and d for a decode step; a step is never both."""
    prompts = [segment.start == 0 or len(segment.tokens) > 1 for segment in step.segments]
    assert all(prompts) or not any(prompts)
    return "p" if all(prompts) else "d"


@pytest.mark.parametrize(
    ("prompts", "decoding", "waited", "due"),
    [
        (0, 0, 0, False),
        (0, 9, MAX_PREFILL_WAIT_STEPS, False),
        (1, 0, -1, True),  # nothing decodes
        (1, DECODES_PER_PREFILL, 0, True),
        (1, DECODES_PER_PREFILL + 1, 0, False),
        (1, DECODES_PER_PREFILL + 1, MAX_PREFILL_WAIT_STEPS - 1, False),
        (1, 10_000, MAX_PREFILL_WAIT_STEPS, True),
        (9, 10, -1, False),  # a decode step follows a prefill step
        (10, 10, -1, True),  # unless as many wait as decode
        (500, 1, 1 - MAX_PREFILL_BURST, True),
        (500, 1, -MAX_PREFILL_BURST, False),
    ],
)
def test_when_to_prefill(prompts: int, decoding: int, waited: int, due: bool) -> None:
    assert should_prefill(prompts, decoding, waited) is due


def test_prompts_are_prefilled_together_and_then_all_decode() -> None:
    scheduler = make_separate()
    for key in range(4):
        scheduler.add(make_sequence(key, prompt=8))
    assert shape(run(scheduler)) == [(key, 0, 8, True) for key in range(4)]
    assert shape(run(scheduler)) == [(key, 8, 1, True) for key in range(4)]


def test_prefill_and_decode_alternate_while_many_wait() -> None:
    scheduler = make_separate(step_tokens=16)
    for key in range(8):
        scheduler.add(make_sequence(key, prompt=8))
    assert "".join(kind(run(scheduler)) for _ in range(9)) == "pppdpdddd"  # 2, 4 and 6 of 8 decode


def test_decodes_never_wait_longer_than_a_burst() -> None:
    scheduler = make_separate(step_tokens=8)
    for key in range(40):
        scheduler.add(make_sequence(key, prompt=8))
    kinds = "".join(kind(run(scheduler)) for _ in range(60))
    assert kinds.startswith("p" * MAX_PREFILL_BURST + "d" + "p" * MAX_PREFILL_BURST + "d")
    assert "p" * (MAX_PREFILL_BURST + 1) not in kinds


def test_a_prompt_waits_for_others_but_not_for_long() -> None:
    scheduler = make_separate(step_tokens=2000)
    for key in range(2 * DECODES_PER_PREFILL):
        scheduler.add(make_sequence(key, prompt=8))
    run(scheduler)
    run(scheduler)
    scheduler.add(make_sequence(100, prompt=8))
    assert (
        "".join(kind(run(scheduler)) for _ in range(MAX_PREFILL_WAIT_STEPS + 2)) == "d" * MAX_PREFILL_WAIT_STEPS + "pd"
    )


def test_enough_prompts_end_the_wait() -> None:
    scheduler = make_separate(step_tokens=2000)
    for key in range(2 * DECODES_PER_PREFILL):
        scheduler.add(make_sequence(key, prompt=8))
    run(scheduler)
    run(scheduler)
    scheduler.add(make_sequence(100, prompt=8))
    assert kind(run(scheduler)) == "d"
    scheduler.add(make_sequence(101, prompt=8))
    assert shape(run(scheduler)) == [(100, 0, 8, True), (101, 0, 8, True)]


def test_prompts_without_capacity_do_not_delay_decodes() -> None:
    scheduler = make_separate(max_sequences=2)
    for key in range(3):
        scheduler.add(make_sequence(key, prompt=8))
    assert "".join(kind(run(scheduler)) for _ in range(20)) == "p" + 19 * "d"


def test_a_long_prompt_continues_between_decode_steps() -> None:
    scheduler = make_separate(step_tokens=20)
    scheduler.add(make_sequence(1, prompt=4))
    run(scheduler)
    scheduler.add(make_sequence(2, prompt=50))
    steps = [shape(run(scheduler)) for _ in range(8)]
    assert [step for step in steps if step[0][0] == 2] == [
        [(2, 0, 20, False)], [(2, 20, 20, False)], [(2, 40, 10, True)]
    ]  # fmt: skip
    assert steps[-1] == [(1, steps[-1][0][1], 1, True), (2, steps[-1][1][1], 1, True)]


def test_each_adapter_waits_for_itself() -> None:
    scheduler = make_separate()
    for key in range(6):
        scheduler.add(make_sequence(key, prompt=8, lora=("a", "b")[key % 2]))
    kinds: dict[str | None, str] = {"a": "", "b": ""}
    for key in range(6, 12):
        step = run(scheduler)
        kinds[step.lora] += kind(step)
        scheduler.add(make_sequence(key, prompt=8, lora=("a", "b")[key % 2]))
    assert kinds == {"a": "pdp", "b": "pdp"}


def test_nothing_starves() -> None:
    sequences = [
        make_sequence(i, prompt=1 + 37 * i % 200, lora=("x", None)[i % 2], max_tokens=1 + i % 9) for i in range(60)
    ]
    scheduler = make_separate(max_sequences=5, step_tokens=32, cached_tokens=1500)
    run_to_end(sequences, scheduler)
    assert all(len(sequence.output) == sequence.max_output_tokens for sequence in sequences)


def test_waits_are_bounded_on_both_sides() -> None:
    """Under a stream of new prompts, decodes get most steps and no prompt waits too long."""
    scheduler = make_separate(max_sequences=200, step_tokens=100)
    since: dict[int, int] = {}
    kinds = ""
    for turn in range(400):
        if turn % 3 == 0:
            scheduler.add(make_sequence(turn, prompt=10, max_tokens=60))
            since[turn] = turn
        step = run(scheduler)
        kinds += kind(step)
        for segment in step.segments:
            if segment.start == 0:
                assert turn - since[segment.sequence_id] <= MAX_PREFILL_WAIT_STEPS + 1
        scheduler.remove_finished()
    assert "pp" not in kinds.lstrip("p") and kinds.count("p") > 40
