"""Prompts in steps of their own, apart from those who decode."""

from __future__ import annotations

import pytest

from enginebay.engines.transformers.schedule import BURST, COMPANY, PATIENCE, Schedule, Step, prompts_are_due
from tests.unit.engines.transformers.helpers import row
from tests.unit.engines.transformers.test_schedule import everything, run, schedule, shape


def apart(rows: int = 64, step_tokens: int = 64, cached_tokens: int = 1_000_000) -> Schedule:
    plan = schedule(rows, step_tokens, cached_tokens)
    plan.apart = True
    return plan


def kind(step: Step) -> str:
    """p: prompts, d: every row decodes; a step is never both."""
    prompts = [segment.start == 0 or len(segment.tokens) > 1 for segment in step.segments]
    assert all(prompts) or not any(prompts)
    return "p" if all(prompts) else "d"


@pytest.mark.parametrize(
    ("prompts", "decoding", "waited", "due"),
    [
        (0, 0, 0, False),
        (0, 9, PATIENCE, False),
        (1, 0, -1, True),  # nobody else has anything to do
        (1, COMPANY, 0, True),
        (1, COMPANY + 1, 0, False),
        (1, COMPANY + 1, PATIENCE - 1, False),
        (1, 10_000, PATIENCE, True),
        (9, 10, -1, False),  # those who decode have a step between two of prompts
        (10, 10, -1, True),  # unless fewer decode than wait
        (500, 1, 1 - BURST, True),
        (500, 1, -BURST, False),
    ],
)
def test_when_prompts_are_due(prompts: int, decoding: int, waited: int, due: bool) -> None:
    assert prompts_are_due(prompts, decoding, waited) is due


def test_prompts_are_computed_together_and_then_all_decode() -> None:
    plan = apart()
    for key in range(4):
        plan.add(row(key, prompt=8))
    assert shape(run(plan)) == [(key, 0, 8, True) for key in range(4)]
    assert shape(run(plan)) == [(key, 8, 1, True) for key in range(4)]


def test_prompts_and_those_who_decode_take_turns_while_many_wait() -> None:
    plan = apart(step_tokens=16)
    for key in range(8):
        plan.add(row(key, prompt=8))
    assert "".join(kind(run(plan)) for _ in range(9)) == "pppdpdddd"  # 2, 4 and 6 of 8 decode


def test_those_who_decode_never_wait_for_more_than_a_burst() -> None:
    plan = apart(step_tokens=8)
    for key in range(40):
        plan.add(row(key, prompt=8))
    kinds = "".join(kind(run(plan)) for _ in range(60))
    assert kinds.startswith("p" * BURST + "d" + "p" * BURST + "d")
    assert "p" * (BURST + 1) not in kinds


def test_a_prompt_waits_for_company_but_not_for_long() -> None:
    plan = apart(step_tokens=2000)
    for key in range(2 * COMPANY):
        plan.add(row(key, prompt=8))
    run(plan)
    run(plan)
    plan.add(row(100, prompt=8))
    assert "".join(kind(run(plan)) for _ in range(PATIENCE + 2)) == "d" * PATIENCE + "pd"


def test_enough_company_ends_the_wait() -> None:
    plan = apart(step_tokens=2000)
    for key in range(2 * COMPANY):
        plan.add(row(key, prompt=8))
    run(plan)
    run(plan)
    plan.add(row(100, prompt=8))
    assert kind(run(plan)) == "d"
    plan.add(row(101, prompt=8))
    assert shape(run(plan)) == [(100, 0, 8, True), (101, 0, 8, True)]


def test_prompts_without_room_wait_and_nobody_waits_for_them() -> None:
    plan = apart(rows=2)
    for key in range(3):
        plan.add(row(key, prompt=8))
    assert "".join(kind(run(plan)) for _ in range(20)) == "p" + 19 * "d"


def test_a_long_prompt_goes_on_between_steps_of_those_who_decode() -> None:
    plan = apart(step_tokens=20)
    plan.add(row(1, prompt=4))
    run(plan)
    plan.add(row(2, prompt=50))
    steps = [shape(run(plan)) for _ in range(8)]
    assert [step for step in steps if step[0][0] == 2] == [
        [(2, 0, 20, False)], [(2, 20, 20, False)], [(2, 40, 10, True)]
    ]  # fmt: skip
    assert steps[-1] == [(1, steps[-1][0][1], 1, True), (2, steps[-1][1][1], 1, True)]


def test_each_adapter_waits_for_itself() -> None:
    plan = apart()
    for key in range(6):
        plan.add(row(key, prompt=8, lora=("a", "b")[key % 2]))
    kinds: dict[str | None, str] = {"a": "", "b": ""}
    for key in range(6, 12):
        step = run(plan)
        kinds[step.lora] += kind(step)
        plan.add(row(key, prompt=8, lora=("a", "b")[key % 2]))
    assert kinds == {"a": "pdp", "b": "pdp"}


def test_nobody_starves_apart_either() -> None:
    rows = [row(i, prompt=1 + 37 * i % 200, lora=("x", None)[i % 2], max_tokens=1 + i % 9) for i in range(60)]
    plan = apart(rows=5, step_tokens=32, cached_tokens=1500)
    everything(rows, plan)
    assert all(len(one.output) == one.limit for one in rows)


def test_waits_are_bounded_on_both_sides() -> None:
    """Under a stream of new prompts: those who decode get most steps, and no prompt waits longer than allowed."""
    plan = apart(rows=200, step_tokens=100)
    since: dict[int, int] = {}
    kinds = ""
    for turn in range(400):
        if turn % 3 == 0:
            plan.add(row(turn, prompt=10, max_tokens=60))
            since[turn] = turn
        step = run(plan)
        kinds += kind(step)
        for segment in step.segments:
            if segment.start == 0:
                assert turn - since[segment.key] <= PATIENCE + 1
        plan.finish_ended()
    assert "pp" not in kinds.lstrip("p") and kinds.count("p") > 40
