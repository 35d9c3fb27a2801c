from __future__ import annotations

import math
from typing import Any

import pytest

from enginebay.fleet.scheduling.planner import (
    CancelDrain,
    Drain,
    PlannerAction,
    PlannerLimits,
    Reject,
    ReplicaSnapshot,
    ReplicaState,
    Transition,
    WaitingRequest,
    estimate_wait,
    plan_actions,
)

AWAKE, ASLEEP, COLD = ReplicaState.AWAKE, ReplicaState.ASLEEP, ReplicaState.COLD
MEMORY = {"ram": 100}
GPU = {"ram": 100, "gpu0": 100}
NOW = 1000.0


def holding(name: str, depth: ReplicaState = COLD, ram: int = 100, **more: Any) -> ReplicaSnapshot:
    return ReplicaSnapshot(**{"name": name, "depth": depth, "awake": {"ram": ram}, "asleep": None, **more})


def on_gpu(
    name: str, depth: ReplicaState, ram: int = 10, asleep_ram: int = 50, gpu: int = 100, **more: Any
) -> ReplicaSnapshot:
    """As vLLM asleep at level 1: what it had on the GPU goes to RAM."""
    awake, asleep = {"ram": ram, "gpu0": gpu}, {"ram": asleep_ram, "gpu0": 1}
    return ReplicaSnapshot(**{"name": name, "depth": depth, "awake": awake, "asleep": asleep, **more})


def asks(*models: str, deadline: float = math.inf) -> list[WaitingRequest]:
    """One request for each, the first the oldest."""
    return [WaitingRequest(number, model, NOW - 100 + number, deadline) for number, model in enumerate(models)]


def plan(
    models: list[ReplicaSnapshot],
    waiting: list[WaitingRequest] | None = None,
    memory: dict[str, int] = MEMORY,
    **rules: Any,
) -> list[PlannerAction]:
    return plan_actions(NOW, memory, models, waiting or [], PlannerLimits(**rules))


def test_nobody_waiting_nothing_to_do() -> None:
    assert plan([holding("a", AWAKE), holding("b")]) == []


def test_a_model_somebody_waits_for_is_raised_where_there_is_room() -> None:
    assert plan([holding("a", ram=60), holding("b", AWAKE, ram=40)], asks("a", "a")) == [Transition("a", AWAKE)]


def test_a_request_that_can_be_handed_over_needs_nothing() -> None:
    assert plan([holding("a", AWAKE), holding("b")], asks("a", deadline=NOW - 1)) == []


def test_a_model_that_is_no_longer_known_is_waited_for_until_the_deadline() -> None:
    assert plan([holding("a")], asks("gone")) == []
    assert plan([holding("a")], asks("gone", deadline=NOW)) == [Reject(0, "deadline", 0.0)]


# Refusals


def test_a_passed_deadline_is_refused_with_the_time_it_would_have_taken() -> None:
    models = [holding("a", AWAKE, moving=True, raise_s=7)]
    assert plan(models, asks("a", deadline=NOW)) == [Reject(0, "deadline", 7.0)]
    assert plan(models, asks("a", deadline=NOW + 0.1)) == []


def test_nothing_is_raised_for_a_refused_request() -> None:
    assert plan([holding("a", raise_s=3)], asks("a", deadline=NOW - 1)) == [Reject(0, "deadline", 3.0)]


def test_what_can_never_fit_is_refused_at_once_and_holds_up_nobody() -> None:
    assert plan([holding("a", ram=101), holding("b")], asks("a", "b")) == [
        Reject(0, "memory", 0.0),
        Transition("b", AWAKE),
    ]


def test_pinned_models_leave_what_they_leave() -> None:
    pinned = holding("p", AWAKE, ram=30, pinned=True)
    assert plan([pinned, holding("a", ram=71)], asks("a")) == [Reject(0, "memory", 0.0)]
    assert plan([pinned, holding("a", ram=70)], asks("a")) == [Transition("a", AWAKE)]
    cold = holding("p", ram=30, pinned=True)
    assert plan([cold, holding("a", ram=71)], asks("a")) == [Transition("a", AWAKE)]


def test_a_pool_this_host_does_not_have_has_no_room() -> None:
    assert plan([on_gpu("a", COLD)], asks("a")) == [Reject(0, "memory", 0.0)]


def test_pins_that_take_every_slot_refuse_the_others() -> None:
    models = [holding("p", AWAKE, ram=1, pinned=True), holding("a", ram=1)]
    assert plan(models, asks("a"), max_awake=1) == [Reject(0, "memory", 0.0)]


# The order of raises


def test_the_oldest_request_decides_who_is_next() -> None:
    assert plan([holding("a"), holding("b"), holding("c")], asks("b", "a", "c", "a")) == [Transition("b", AWAKE)]


def test_the_queue_need_not_be_sorted() -> None:
    assert plan([holding("a"), holding("b")], asks("b", "a")[::-1]) == [Transition("b", AWAKE)]


def test_one_raise_at_a_time_unless_more_are_allowed() -> None:
    models = [holding("a", ram=10), holding("b", ram=10), holding("c", ram=10)]
    assert plan(models, asks("a", "b", "c")) == [Transition("a", AWAKE)]
    assert plan(models, asks("a", "b", "c"), parallel_raises=2) == [Transition("a", AWAKE), Transition("b", AWAKE)]
    models[2] = holding("c", AWAKE, ram=10, moving=True)
    assert plan(models, asks("a", "b", "c")) == []


def test_one_that_died_comes_back_beside_another_raise_if_there_is_room() -> None:
    models = [holding("a", AWAKE, ram=10, moving=True), holding("b", ram=10, comes_back=True), holding("c", ram=10)]
    assert plan(models, asks("a", "c", "b")) == [Transition("b", AWAKE)]
    assert plan(models, asks("a", "c", "b"), max_awake=1) == []


def test_a_model_in_backoff_is_passed_over() -> None:
    models = [holding("a", not_before=NOW + 1), holding("b")]
    assert plan(models, asks("a", "b")) == [Transition("b", AWAKE)]
    assert plan([holding("a", not_before=NOW), holding("b")], asks("a", "b")) == [Transition("a", AWAKE)]


def test_a_younger_one_does_not_take_what_the_oldest_waits_for() -> None:
    # 40 are free, `a` waits until `c` may be asked: if `b` came in now, `a` would have to wait for it too.
    models = [holding("a", ram=90), holding("b", ram=40), holding("c", AWAKE, ram=60, min_residency_s=NOW + 1)]
    assert plan(models, asks("a", "b"), parallel_raises=2) == []


def test_a_younger_one_goes_first_if_it_takes_nothing_from_the_oldest() -> None:
    models = [holding("a", ram=90), holding("b", ram=10), holding("c", AWAKE, ram=60, min_residency_s=NOW + 1)]
    assert plan(models, asks("a", "b")) == [Transition("b", AWAKE)]


def test_a_younger_one_is_not_raised_out_of_what_it_has_to_give() -> None:
    # `b` asleep will have to go for `a`; that it needs little more to be awake does not help it.
    b = ReplicaSnapshot(name="b", state=ASLEEP, awake_bytes={"ram": 45}, asleep_bytes={"ram": 40})
    models = [holding("a", ram=90), b, holding("c", AWAKE, ram=40, min_residency_s=NOW + 1)]
    assert plan(models, asks("a", "b"), parallel_raises=2) == []


def test_a_model_on_its_way_down_is_raised_when_it_has_arrived_and_nobody_takes_its_room() -> None:
    models = [holding("a", COLD, moving=True), holding("b", ram=50)]
    assert plan(models, asks("a", "b")) == []


# Room


def test_room_is_made_by_the_least_recently_used() -> None:
    models = [holding("a", AWAKE, 50, idle_since=2), holding("b", AWAKE, 50, idle_since=1), holding("c", ram=50)]
    assert plan(models, asks("c")) == [Transition("b", COLD)]


def test_no_more_is_unloaded_than_needed() -> None:
    models = [holding("a", AWAKE, 10, idle_since=1), holding("b", AWAKE, 90, idle_since=2), holding("c", ram=80)]
    assert plan(models, asks("c")) == [Transition("b", COLD)]


def test_nothing_more_is_unloaded_while_room_is_on_its_way() -> None:
    going = holding("b", COLD, 50, moving=True, came_from=AWAKE)
    assert plan([holding("a", AWAKE, 50), going, holding("c", ram=50)], asks("c")) == []


def test_sleeping_is_preferred_to_unloading() -> None:
    models = [on_gpu("a", AWAKE, idle_since=2), on_gpu("b", COLD, gpu=90)]
    assert plan(models, asks("b"), GPU) == [Transition("a", ASLEEP)]


def test_two_asleep_are_preferred_to_one_unloaded() -> None:
    models = [on_gpu("a", AWAKE, asleep_ram=20, gpu=50), on_gpu("b", AWAKE, asleep_ram=20, gpu=50)]
    assert plan([*models, on_gpu("c", COLD, gpu=50)], asks("c"), GPU) == [
        Transition("a", ASLEEP),
        Transition("b", ASLEEP),
    ]


def test_sleep_that_does_not_free_enough_is_no_use() -> None:
    assert plan([on_gpu("a", AWAKE), on_gpu("b", COLD)], asks("b"), GPU) == [Transition("a", COLD)]


def test_sleep_that_frees_nothing_of_what_is_short_is_no_use() -> None:
    kept = ReplicaSnapshot(name="a", state=AWAKE, awake_bytes={"ram": 60}, asleep_bytes={"ram": 60})
    assert plan([kept, holding("b", ram=60)], asks("b")) == [Transition("a", COLD)]
    assert plan([kept, holding("b", ram=40)], asks("b"), max_awake=1) == [Transition("a", ASLEEP)]


def test_the_least_recently_used_sleeper_is_unloaded() -> None:
    models = [
        ReplicaSnapshot(name="a", state=ASLEEP, awake_bytes={"ram": 90}, asleep_bytes={"ram": 50}, idle_since=2),
        ReplicaSnapshot(name="b", state=ASLEEP, awake_bytes={"ram": 90}, asleep_bytes={"ram": 50}, idle_since=1),
        holding("c", ram=50),
    ]
    assert plan(models, asks("c")) == [Transition("b", COLD)]


def test_a_sleeper_makes_room_in_ram_for_a_more_recent_one_to_sleep() -> None:
    # One unload either way: then of who was used longest ago.
    models = [on_gpu("a", AWAKE, idle_since=2), on_gpu("old", ASLEEP, idle_since=1), on_gpu("b", COLD, gpu=90)]
    memory = {"ram": 95, "gpu0": 100}
    assert plan(models, asks("b"), memory) == [Transition("old", COLD)]  # until its RAM is back, `a` cannot go to sleep
    for moving in (True, False):
        models[1] = on_gpu("old", COLD, idle_since=1, moving=moving, came_from=ASLEEP)
        assert plan(models, asks("b"), memory) == ([] if moving else [Transition("a", ASLEEP)])


def test_who_cannot_sleep_for_want_of_ram_is_unloaded() -> None:
    models = [on_gpu("a", AWAKE), on_gpu("b", ASLEEP, gpu=90, asleep_ram=80)]
    assert plan(models, asks("b"), GPU) == [Transition("a", COLD)]


def test_minimum_residency_is_kept() -> None:
    fresh = holding("a", AWAKE, awake_since=NOW - 5, min_residency_s=10)
    assert plan([fresh, holding("b")], asks("b")) == []
    assert plan([holding("a", AWAKE, awake_since=NOW - 10, min_residency_s=10), holding("b")], asks("b")) == [
        Transition("a", COLD)
    ]


def test_nobody_leaves_while_the_rest_cannot_follow() -> None:
    models = [
        holding("a", AWAKE, 50, min_residency_s=NOW + 1), holding("b", AWAKE, 40), holding("c", AWAKE, 10, running=1),
        holding("d"),
    ]  # fmt: skip
    assert plan(models, asks("d")) == []


def test_busy_models_are_closed_only_when_the_idle_are_not_enough() -> None:
    models = [holding("a", AWAKE, 50, running=1), holding("b", AWAKE, 50, idle_since=NOW), holding("c", ram=50)]
    assert plan(models, asks("c")) == [Transition("b", COLD)]
    models[2] = holding("c")
    assert plan(models, asks("c")) == [Transition("b", COLD), Drain("a")]


def test_a_closed_model_is_moved_when_nothing_runs_any_more() -> None:
    draining = holding("a", AWAKE, running=1, closed=True)
    assert plan([draining, holding("b")], asks("b")) == []
    assert plan([holding("a", AWAKE, closed=True), holding("b")], asks("b")) == [Transition("a", COLD)]


def test_the_busy_one_with_the_least_to_finish_is_closed() -> None:
    models = [holding("a", AWAKE, 50, running=3), holding("b", AWAKE, 50, running=1), holding("c", ram=50)]
    assert plan(models, asks("c")) == [Drain("b")]


def test_the_door_stays_open_until_those_whom_a_model_was_raised_for_are_there() -> None:
    raised = holding("a", AWAKE, running=2, arriving=True)
    assert plan([raised, holding("b")], asks("b")) == []
    assert plan([holding("a", AWAKE, running=2), holding("b")], asks("b")) == [Drain("a")]


def test_whom_others_wait_for_leaves_last() -> None:
    models = [
        ReplicaSnapshot(name="a", state=ASLEEP, awake_bytes={"ram": 90}, asleep_bytes={"ram": 50}, idle_since=1),
        ReplicaSnapshot(name="b", state=ASLEEP, awake_bytes={"ram": 90}, asleep_bytes={"ram": 50}, idle_since=2),
        holding("c", ram=50),
    ]
    assert plan(models, asks("c", "a")) == [Transition("b", COLD)]
    assert plan(models, asks("c", "a", "b")) == [Transition("a", COLD)]


def test_a_closed_model_goes_on_draining_whoever_waits_for_it() -> None:
    # Else requests for both would have each opened and the other closed in turn, and `c` would never come.
    models = [
        holding("a", AWAKE, 50, running=3, closed=True), holding("b", AWAKE, 50, running=1), holding("c", ram=50),
    ]  # fmt: skip
    assert plan(models, asks("c", "a")) == []


@pytest.mark.parametrize("running", [0, 1])
def test_a_pinned_model_stays(running: int) -> None:
    models = [holding("p", AWAKE, 50, pinned=True, running=running), holding("a", AWAKE, 50), holding("b", ram=50)]
    assert plan(models, asks("b")) == [Transition("a", COLD)]


def test_who_has_just_become_awake_for_older_requests_is_not_taken_from_them() -> None:
    assert plan([holding("a", AWAKE), holding("b")], asks("a", "b")) == []


def test_no_room_is_made_before_a_raise_can_follow() -> None:
    models = [holding("a", AWAKE, 10, moving=True), holding("b", AWAKE, 90), holding("c", ram=90)]
    assert plan(models, asks("a", "c")) == []
    assert plan(models, asks("a", "c"), parallel_raises=2) == [Transition("b", COLD)]


def test_a_closed_model_leaves_even_before_a_raise_can_follow() -> None:
    models = [holding("a", AWAKE, 10, moving=True), holding("b", AWAKE, 90, closed=True), holding("c", ram=90)]
    assert plan(models, asks("c")) == [Transition("b", COLD)]


# Slots, doors, idle times, memory that is gone


def test_at_most_so_many_are_awake() -> None:
    models = [holding("a", AWAKE, 1, idle_since=2), holding("b", AWAKE, 1, idle_since=1), holding("c", ram=1)]
    assert plan(models, asks("c"), max_awake=2) == [Transition("b", COLD)]
    assert plan(models, asks("c"), max_awake=3) == [Transition("c", AWAKE)]
    models[1] = holding("b", AWAKE, 1, moving=True)
    assert plan(models, asks("c"), max_awake=2, parallel_raises=2) == [Transition("a", COLD)]


def test_a_door_is_opened_when_nobody_needs_the_room() -> None:
    assert plan([holding("a", AWAKE, closed=True, running=1), holding("b")]) == [CancelDrain("a")]
    assert plan([holding("a", AWAKE, closed=True, pinned=True)]) == [CancelDrain("a")]
    assert plan([holding("a", ASLEEP, closed=True), holding("b", closed=True)]) == []


def test_a_door_is_opened_for_the_oldest_who_waits_behind_it() -> None:
    closed = holding("a", AWAKE, closed=True, running=1)
    assert plan([closed, holding("b")], asks("a", "b")) == [CancelDrain("a")]
    assert plan([closed, holding("b")], asks("b", "a")) == []


def test_a_door_is_opened_when_an_idle_one_can_go_instead() -> None:
    models = [
        holding("a", AWAKE, 50, closed=True, running=1), holding("b", AWAKE, 50), holding("c", ram=50),
    ]  # fmt: skip
    assert plan(models, asks("c")) == [Transition("b", COLD), CancelDrain("a")]


@pytest.mark.parametrize("depth", [AWAKE, ASLEEP])
def test_who_is_idle_too_long_is_unloaded(depth: ReplicaState) -> None:
    def idle(**more: Any) -> list[ReplicaSnapshot]:
        return [holding("a", depth, **{"idle_since": NOW - 10, "idle_s": 10, **more})]

    assert plan(idle()) == [Transition("a", COLD)]
    for more in ({"idle_s": 11}, {"idle_s": None}, {"pinned": True}, {"running": 1}, {"moving": True}):
        assert plan(idle(**more)) == []
    assert Transition("a", COLD) not in plan(idle(), asks("a"))


def test_memory_that_shrank_evicts_nobody_and_lets_nobody_in() -> None:
    models = [holding("a", AWAKE, 60), holding("b", AWAKE, 30), holding("c", ram=10)]
    assert plan(models, memory={"ram": 50}) == []
    # For somebody who waits there has to be room in what is left.
    assert plan(models, asks("c"), memory={"ram": 50}) == [Transition("a", COLD)]


def test_a_pool_over_its_memory_does_not_hinder_who_takes_nothing_from_it() -> None:
    models = [holding("a", AWAKE, 60), on_gpu("b", ASLEEP, asleep_ram=50)]
    assert plan(models, asks("b"), {"ram": 90, "gpu0": 100}) == [Transition("b", AWAKE)]


def test_what_is_on_its_way_holds_the_larger_of_both_depths() -> None:
    waking = on_gpu("a", AWAKE, moving=True, asleep_ram=80, gpu=10)
    b = on_gpu("b", COLD, ram=30, gpu=10)
    assert plan([waking, b], asks("b"), GPU, parallel_raises=2) == []
    loading = on_gpu("a", AWAKE, moving=True, came_from=COLD, asleep_ram=80, gpu=10)
    assert plan([loading, b], asks("b"), GPU, parallel_raises=2) == [Transition("b", AWAKE)]


# The outlook


def ahead(
    models: list[ReplicaSnapshot], model: str, *queue: str, memory: dict[str, int] = MEMORY, **rules: Any
) -> float:
    return estimate_wait(NOW, memory, models, asks(*queue), PlannerLimits(**rules), model)


def test_outlook_of_one_that_is_awake_or_soon_so() -> None:
    assert ahead([holding("a", AWAKE)], "a") == 0
    assert ahead([holding("a", AWAKE, moving=True, raise_s=3)], "a") == 3
    assert ahead([holding("a", raise_s=5)], "a") == 5
    assert ahead([holding("a", raise_s=5, not_before=NOW + 2)], "a") == 7


def test_outlook_of_one_that_can_never_be_awake() -> None:
    assert ahead([holding("a", ram=101)], "a") == math.inf
    assert ahead([], "a") == math.inf


def test_outlook_counts_the_residency_of_who_must_leave() -> None:
    models = [holding("a", AWAKE, awake_since=NOW - 4, min_residency_s=10, running=2), holding("b", raise_s=5)]
    assert ahead(models, "b") == 6 + 5


def test_outlook_counts_who_is_ahead() -> None:
    models = [
        holding("a", AWAKE, awake_since=NOW - 4, min_residency_s=10), holding("b", raise_s=5, min_residency_s=20),
        holding("c", raise_s=7),
    ]  # fmt: skip
    assert ahead(models, "c", "b") == 6 + 5 + 20 + 7
    assert ahead(models, "c", "c", "b") == 6 + 7
    assert ahead(models, "b", "c", "b") == 6 + 7 + 5


def test_outlook_counts_raises_one_after_another_unless_more_are_allowed() -> None:
    models = [holding("a", ram=10, raise_s=5), holding("b", ram=10, raise_s=7)]
    assert ahead(models, "b", "a") == 12
    assert ahead(models, "b", "a", parallel_raises=2) == 7


def test_outlook_of_a_closed_model() -> None:
    models = [holding("a", AWAKE, closed=True, raise_s=3), holding("b", raise_s=5, min_residency_s=10)]
    assert ahead(models, "a", "b") == 5 + 10 + 3
    assert ahead(models, "a") == 0
