"""Prompts in steps of their own, apart from those who decode."""

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
from tests.unit.engines.transformers.continuous.test_scheduler import everything, run, schedule, shape
from tests.unit.engines.transformers.fake_rows import make_row


def apart(rows: int = 64, step_tokens: int = 64, cached_tokens: int = 1_000_000) -> StepScheduler:
    plan = schedule(rows, step_tokens, cached_tokens)
    plan.separate_prefill = True
    return plan


def kind(step: ScheduledStep) -> str:
    """p: prompts, d: every row decodes; a step is never both."""
    prompts = [segment.start == 0 or len(segment.tokens) > 1 for segment in step.segments]
    assert all(prompts) or not any(prompts)
    return "p" if all(prompts) else "d"


@pytest.mark.parametrize(
    ("prompts", "decoding", "waited", "due"),
    [
        (0, 0, 0, False),
        (0, 9, MAX_PREFILL_WAIT_STEPS, False),
        (1, 0, -1, True),  # nobody else has anything to do
        (1, DECODES_PER_PREFILL, 0, True),
        (1, DECODES_PER_PREFILL + 1, 0, False),
        (1, DECODES_PER_PREFILL + 1, MAX_PREFILL_WAIT_STEPS - 1, False),
        (1, 10_000, MAX_PREFILL_WAIT_STEPS, True),
        (9, 10, -1, False),  # those who decode have a step between two of prompts
        (10, 10, -1, True),  # unless fewer decode than wait
        (500, 1, 1 - MAX_PREFILL_BURST, True),
        (500, 1, -MAX_PREFILL_BURST, False),
    ],
)
def test_when_prompts_are_due(prompts: int, decoding: int, waited: int, due: bool) -> None:
    assert should_prefill(prompts, decoding, waited) is due


def test_prompts_are_computed_together_and_then_all_decode() -> None:
    plan = apart()
    for key in range(4):
        plan.add(make_row(key, prompt=8))
    assert shape(run(plan)) == [(key, 0, 8, True) for key in range(4)]
    assert shape(run(plan)) == [(key, 8, 1, True) for key in range(4)]


def test_prompts_and_those_who_decode_take_turns_while_many_wait() -> None:
    plan = apart(step_tokens=16)
    for key in range(8):
        plan.add(make_row(key, prompt=8))
    assert "".join(kind(run(plan)) for _ in range(9)) == "pppdpdddd"  # 2, 4 and 6 of 8 decode


def test_those_who_decode_never_wait_for_more_than_a_burst() -> None:
    plan = apart(step_tokens=8)
    for key in range(40):
        plan.add(make_row(key, prompt=8))
    kinds = "".join(kind(run(plan)) for _ in range(60))
    assert kinds.startswith("p" * MAX_PREFILL_BURST + "d" + "p" * MAX_PREFILL_BURST + "d")
    assert "p" * (MAX_PREFILL_BURST + 1) not in kinds


def test_a_prompt_waits_for_company_but_not_for_long() -> None:
    plan = apart(step_tokens=2000)
    for key in range(2 * DECODES_PER_PREFILL):
        plan.add(make_row(key, prompt=8))
    run(plan)
    run(plan)
    plan.add(make_row(100, prompt=8))
    assert "".join(kind(run(plan)) for _ in range(MAX_PREFILL_WAIT_STEPS + 2)) == "d" * MAX_PREFILL_WAIT_STEPS + "pd"


def test_enough_company_ends_the_wait() -> None:
    plan = apart(step_tokens=2000)
    for key in range(2 * DECODES_PER_PREFILL):
        plan.add(make_row(key, prompt=8))
    run(plan)
    run(plan)
    plan.add(make_row(100, prompt=8))
    assert kind(run(plan)) == "d"
    plan.add(make_row(101, prompt=8))
    assert shape(run(plan)) == [(100, 0, 8, True), (101, 0, 8, True)]


def test_prompts_without_room_wait_and_nobody_waits_for_them() -> None:
    plan = apart(rows=2)
    for key in range(3):
        plan.add(make_row(key, prompt=8))
    assert "".join(kind(run(plan)) for _ in range(20)) == "p" + 19 * "d"


def test_a_long_prompt_goes_on_between_steps_of_those_who_decode() -> None:
    plan = apart(step_tokens=20)
    plan.add(make_row(1, prompt=4))
    run(plan)
    plan.add(make_row(2, prompt=50))
    steps = [shape(run(plan)) for _ in range(8)]
    assert [step for step in steps if step[0][0] == 2] == [
        [(2, 0, 20, False)], [(2, 20, 20, False)], [(2, 40, 10, True)]
    ]  # fmt: skip
    assert steps[-1] == [(1, steps[-1][0][1], 1, True), (2, steps[-1][1][1], 1, True)]


def test_each_adapter_waits_for_itself() -> None:
    plan = apart()
    for key in range(6):
        plan.add(make_row(key, prompt=8, lora=("a", "b")[key % 2]))
    kinds: dict[str | None, str] = {"a": "", "b": ""}
    for key in range(6, 12):
        step = run(plan)
        kinds[step.lora] += kind(step)
        plan.add(make_row(key, prompt=8, lora=("a", "b")[key % 2]))
    assert kinds == {"a": "pdp", "b": "pdp"}


def test_nobody_starves_apart_either() -> None:
    rows = [make_row(i, prompt=1 + 37 * i % 200, lora=("x", None)[i % 2], max_tokens=1 + i % 9) for i in range(60)]
    plan = apart(rows=5, step_tokens=32, cached_tokens=1500)
    everything(rows, plan)
    assert all(len(one.output) == one.max_output_tokens for one in rows)


def test_waits_are_bounded_on_both_sides() -> None:
    """Under a stream of new prompts: those who decode get most steps, and no prompt waits longer than allowed."""
    plan = apart(rows=200, step_tokens=100)
    since: dict[int, int] = {}
    kinds = ""
    for turn in range(400):
        if turn % 3 == 0:
            plan.add(make_row(turn, prompt=10, max_tokens=60))
            since[turn] = turn
        step = run(plan)
        kinds += kind(step)
        for segment in step.segments:
            if segment.start == 0:
                assert turn - since[segment.sequence_id] <= MAX_PREFILL_WAIT_STEPS + 1
        plan.remove_finished()
    assert "pp" not in kinds.lstrip("p") and kinds.count("p") > 40
