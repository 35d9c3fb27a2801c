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


def replica(name: str, state: ReplicaState = COLD, ram: int = 100, **more: Any) -> ReplicaSnapshot:
    return ReplicaSnapshot(**{"name": name, "state": state, "awake_bytes": {"ram": ram}, "asleep_bytes": None, **more})


def on_gpu(
    name: str, state: ReplicaState, ram: int = 10, asleep_ram: int = 50, gpu: int = 100, **more: Any
) -> ReplicaSnapshot:
    """Like vLLM at sleep level 1: GPU weights move to RAM."""
    awake, asleep = {"ram": ram, "gpu0": gpu}, {"ram": asleep_ram, "gpu0": 1}
    return ReplicaSnapshot(**{"name": name, "state": state, "awake_bytes": awake, "asleep_bytes": asleep, **more})


def requests_for(*models: str, deadline: float = math.inf) -> list[WaitingRequest]:
    """Return one request per model, oldest first."""
    return [WaitingRequest(number, model, NOW - 100 + number, deadline) for number, model in enumerate(models)]


def plan(
    models: list[ReplicaSnapshot],
    waiting: list[WaitingRequest] | None = None,
    memory: dict[str, int] = MEMORY,
    **limits: Any,
) -> list[PlannerAction]:
    return plan_actions(NOW, memory, models, waiting or [], PlannerLimits(**limits))


def test_without_waiting_requests_nothing_happens() -> None:
    assert plan([replica("a", AWAKE), replica("b")]) == []


def test_an_awaited_model_loads_if_it_fits() -> None:
    assert plan([replica("a", ram=60), replica("b", AWAKE, ram=40)], requests_for("a", "a")) == [Transition("a", AWAKE)]


def test_a_request_for_a_serving_model_needs_no_action() -> None:
    assert plan([replica("a", AWAKE), replica("b")], requests_for("a", deadline=NOW - 1)) == []


def test_a_request_for_a_removed_model_waits_until_its_deadline() -> None:
    assert plan([replica("a")], requests_for("gone")) == []
    assert plan([replica("a")], requests_for("gone", deadline=NOW)) == [Reject(0, "deadline", 0.0)]


# Rejections


def test_a_passed_deadline_is_rejected_with_the_estimated_wait() -> None:
    models = [replica("a", AWAKE, in_transition=True, time_to_ready_s=7)]
    assert plan(models, requests_for("a", deadline=NOW)) == [Reject(0, "deadline", 7.0)]
    assert plan(models, requests_for("a", deadline=NOW + 0.1)) == []


def test_nothing_loads_for_a_rejected_request() -> None:
    assert plan([replica("a", time_to_ready_s=3)], requests_for("a", deadline=NOW - 1)) == [Reject(0, "deadline", 3.0)]


def test_a_model_that_can_never_fit_is_rejected_at_once_and_blocks_nobody() -> None:
    assert plan([replica("a", ram=101), replica("b")], requests_for("a", "b")) == [
        Reject(0, "memory", 0.0),
        Transition("b", AWAKE),
    ]


def test_pinned_models_reduce_the_available_memory() -> None:
    pinned = replica("p", AWAKE, ram=30, pinned=True)
    assert plan([pinned, replica("a", ram=71)], requests_for("a")) == [Reject(0, "memory", 0.0)]
    assert plan([pinned, replica("a", ram=70)], requests_for("a")) == [Transition("a", AWAKE)]
    cold = replica("p", ram=30, pinned=True)
    assert plan([cold, replica("a", ram=71)], requests_for("a")) == [Transition("a", AWAKE)]


def test_a_missing_pool_has_no_memory() -> None:
    assert plan([on_gpu("a", COLD)], requests_for("a")) == [Reject(0, "memory", 0.0)]


def test_pinned_models_in_every_slot_reject_the_others() -> None:
    models = [replica("p", AWAKE, ram=1, pinned=True), replica("a", ram=1)]
    assert plan(models, requests_for("a"), max_awake=1) == [Reject(0, "memory", 0.0)]


# Load order


def test_the_oldest_request_decides_which_model_loads_next() -> None:
    assert plan([replica("a"), replica("b"), replica("c")], requests_for("b", "a", "c", "a")) == [
        Transition("b", AWAKE)
    ]


def test_the_queue_need_not_be_sorted() -> None:
    assert plan([replica("a"), replica("b")], requests_for("b", "a")[::-1]) == [Transition("b", AWAKE)]


def test_one_load_at_a_time_unless_more_are_allowed() -> None:
    models = [replica("a", ram=10), replica("b", ram=10), replica("c", ram=10)]
    assert plan(models, requests_for("a", "b", "c")) == [Transition("a", AWAKE)]
    assert plan(models, requests_for("a", "b", "c"), parallel_loads=2) == [
        Transition("a", AWAKE),
        Transition("b", AWAKE),
    ]
    models[2] = replica("c", AWAKE, ram=10, in_transition=True)
    assert plan(models, requests_for("a", "b", "c")) == []


def test_a_crashed_model_reloads_in_parallel_if_it_fits() -> None:
    models = [
        replica("a", AWAKE, ram=10, in_transition=True),
        replica("b", ram=10, recovering=True),
        replica("c", ram=10),
    ]
    assert plan(models, requests_for("a", "c", "b")) == [Transition("b", AWAKE)]
    assert plan(models, requests_for("a", "c", "b"), max_awake=1) == []


def test_a_model_in_backoff_is_skipped() -> None:
    models = [replica("a", retry_at=NOW + 1), replica("b")]
    assert plan(models, requests_for("a", "b")) == [Transition("b", AWAKE)]
    assert plan([replica("a", retry_at=NOW), replica("b")], requests_for("a", "b")) == [Transition("a", AWAKE)]


def test_a_younger_request_does_not_take_memory_from_the_oldest() -> None:
    # 40 are free, and `a` waits for the minimum residency of `c`. If `b` loaded now, `a` would have to wait for it too.
    models = [replica("a", ram=90), replica("b", ram=40), replica("c", AWAKE, ram=60, min_residency_s=NOW + 1)]
    assert plan(models, requests_for("a", "b"), parallel_loads=2) == []


def test_a_younger_request_goes_first_if_it_does_not_delay_the_oldest() -> None:
    models = [replica("a", ram=90), replica("b", ram=10), replica("c", AWAKE, ram=60, min_residency_s=NOW + 1)]
    assert plan(models, requests_for("a", "b")) == [Transition("b", AWAKE)]


def test_a_model_that_has_to_leave_is_not_woken_first() -> None:
    # The sleeping `b` has to leave for `a`, even if waking it needs little memory.
    b = ReplicaSnapshot(name="b", state=ASLEEP, awake_bytes={"ram": 45}, asleep_bytes={"ram": 40})
    models = [replica("a", ram=90), b, replica("c", AWAKE, ram=40, min_residency_s=NOW + 1)]
    assert plan(models, requests_for("a", "b"), parallel_loads=2) == []


def test_an_unloading_model_reloads_afterwards_and_keeps_its_memory_reserved() -> None:
    models = [replica("a", COLD, in_transition=True), replica("b", ram=50)]
    assert plan(models, requests_for("a", "b")) == []


# Eviction


def test_the_least_recently_used_is_evicted() -> None:
    models = [replica("a", AWAKE, 50, idle_since=2), replica("b", AWAKE, 50, idle_since=1), replica("c", ram=50)]
    assert plan(models, requests_for("c")) == [Transition("b", COLD)]


def test_no_more_is_unloaded_than_needed() -> None:
    models = [replica("a", AWAKE, 10, idle_since=1), replica("b", AWAKE, 90, idle_since=2), replica("c", ram=80)]
    assert plan(models, requests_for("c")) == [Transition("b", COLD)]


def test_no_further_eviction_while_one_in_progress_frees_enough() -> None:
    leaving = replica("b", COLD, 50, in_transition=True, previous_state=AWAKE)
    assert plan([replica("a", AWAKE, 50), leaving, replica("c", ram=50)], requests_for("c")) == []


def test_sleeping_is_preferred_to_unloading() -> None:
    models = [on_gpu("a", AWAKE, idle_since=2), on_gpu("b", COLD, gpu=90)]
    assert plan(models, requests_for("b"), GPU) == [Transition("a", ASLEEP)]


def test_two_asleep_are_preferred_to_one_unloaded() -> None:
    models = [on_gpu("a", AWAKE, asleep_ram=20, gpu=50), on_gpu("b", AWAKE, asleep_ram=20, gpu=50)]
    assert plan([*models, on_gpu("c", COLD, gpu=50)], requests_for("c"), GPU) == [
        Transition("a", ASLEEP),
        Transition("b", ASLEEP),
    ]


def test_a_model_whose_sleep_frees_too_little_is_unloaded() -> None:
    assert plan([on_gpu("a", AWAKE), on_gpu("b", COLD)], requests_for("b"), GPU) == [Transition("a", COLD)]


def test_sleep_is_used_only_if_it_frees_the_short_pool() -> None:
    keeps_ram = ReplicaSnapshot(name="a", state=AWAKE, awake_bytes={"ram": 60}, asleep_bytes={"ram": 60})
    assert plan([keeps_ram, replica("b", ram=60)], requests_for("b")) == [Transition("a", COLD)]
    assert plan([keeps_ram, replica("b", ram=40)], requests_for("b"), max_awake=1) == [Transition("a", ASLEEP)]


def test_the_least_recently_used_sleeping_model_is_unloaded() -> None:
    models = [
        ReplicaSnapshot(name="a", state=ASLEEP, awake_bytes={"ram": 90}, asleep_bytes={"ram": 50}, idle_since=2),
        ReplicaSnapshot(name="b", state=ASLEEP, awake_bytes={"ram": 90}, asleep_bytes={"ram": 50}, idle_since=1),
        replica("c", ram=50),
    ]
    assert plan(models, requests_for("c")) == [Transition("b", COLD)]


def test_a_sleeping_model_is_unloaded_so_that_a_more_recent_one_can_sleep() -> None:
    # One unload either way: the least recently used.
    models = [on_gpu("a", AWAKE, idle_since=2), on_gpu("old", ASLEEP, idle_since=1), on_gpu("b", COLD, gpu=90)]
    memory = {"ram": 95, "gpu0": 100}
    assert plan(models, requests_for("b"), memory) == [
        Transition("old", COLD)
    ]  # `a` cannot sleep before that RAM is free
    for leaving in (True, False):
        models[1] = on_gpu("old", COLD, idle_since=1, in_transition=leaving, previous_state=ASLEEP)
        assert plan(models, requests_for("b"), memory) == ([] if leaving else [Transition("a", ASLEEP)])


def test_a_model_that_cannot_sleep_for_lack_of_ram_is_unloaded() -> None:
    models = [on_gpu("a", AWAKE), on_gpu("b", ASLEEP, gpu=90, asleep_ram=80)]
    assert plan(models, requests_for("b"), GPU) == [Transition("a", COLD)]


def test_minimum_residency_is_respected() -> None:
    fresh = replica("a", AWAKE, awake_since=NOW - 5, min_residency_s=10)
    assert plan([fresh, replica("b")], requests_for("b")) == []
    assert plan([replica("a", AWAKE, awake_since=NOW - 10, min_residency_s=10), replica("b")], requests_for("b")) == [
        Transition("a", COLD)
    ]


def test_no_eviction_until_all_of_them_are_possible() -> None:
    models = [
        replica("a", AWAKE, 50, min_residency_s=NOW + 1), replica("b", AWAKE, 40), replica("c", AWAKE, 10, running=1),
        replica("d"),
    ]  # fmt: skip
    assert plan(models, requests_for("d")) == []


def test_busy_models_drain_only_if_idle_ones_are_not_enough() -> None:
    models = [replica("a", AWAKE, 50, running=1), replica("b", AWAKE, 50, idle_since=NOW), replica("c", ram=50)]
    assert plan(models, requests_for("c")) == [Transition("b", COLD)]
    models[2] = replica("c")
    assert plan(models, requests_for("c")) == [Transition("b", COLD), Drain("a")]


def test_a_drained_model_is_evicted() -> None:
    draining = replica("a", AWAKE, running=1, draining=True)
    assert plan([draining, replica("b")], requests_for("b")) == []
    assert plan([replica("a", AWAKE, draining=True), replica("b")], requests_for("b")) == [Transition("a", COLD)]


def test_the_busy_model_with_the_fewest_requests_drains() -> None:
    models = [replica("a", AWAKE, 50, running=3), replica("b", AWAKE, 50, running=1), replica("c", ram=50)]
    assert plan(models, requests_for("c")) == [Drain("b")]


def test_a_model_does_not_drain_before_the_requests_it_loaded_for_arrive() -> None:
    loaded = replica("a", AWAKE, running=2, awaiting_arrivals=True)
    assert plan([loaded, replica("b")], requests_for("b")) == []
    assert plan([replica("a", AWAKE, running=2), replica("b")], requests_for("b")) == [Drain("a")]


def test_awaited_models_are_evicted_last() -> None:
    models = [
        ReplicaSnapshot(name="a", state=ASLEEP, awake_bytes={"ram": 90}, asleep_bytes={"ram": 50}, idle_since=1),
        ReplicaSnapshot(name="b", state=ASLEEP, awake_bytes={"ram": 90}, asleep_bytes={"ram": 50}, idle_since=2),
        replica("c", ram=50),
    ]
    assert plan(models, requests_for("c", "a")) == [Transition("b", COLD)]
    assert plan(models, requests_for("c", "a", "b")) == [Transition("a", COLD)]


def test_a_draining_model_keeps_draining_even_if_awaited() -> None:
    # Otherwise requests for both would drain and resume them in turn, and `c` would never load.
    models = [
        replica("a", AWAKE, 50, running=3, draining=True), replica("b", AWAKE, 50, running=1), replica("c", ram=50),
    ]  # fmt: skip
    assert plan(models, requests_for("c", "a")) == []


@pytest.mark.parametrize("running", [0, 1])
def test_a_pinned_model_is_not_evicted(running: int) -> None:
    models = [replica("p", AWAKE, 50, pinned=True, running=running), replica("a", AWAKE, 50), replica("b", ram=50)]
    assert plan(models, requests_for("b")) == [Transition("a", COLD)]


def test_a_model_loaded_for_older_requests_is_not_evicted() -> None:
    assert plan([replica("a", AWAKE), replica("b")], requests_for("a", "b")) == []


def test_no_eviction_before_a_load_can_follow() -> None:
    models = [replica("a", AWAKE, 10, in_transition=True), replica("b", AWAKE, 90), replica("c", ram=90)]
    assert plan(models, requests_for("a", "c")) == []
    assert plan(models, requests_for("a", "c"), parallel_loads=2) == [Transition("b", COLD)]


def test_a_drained_model_leaves_even_before_a_load_can_follow() -> None:
    models = [replica("a", AWAKE, 10, in_transition=True), replica("b", AWAKE, 90, draining=True), replica("c", ram=90)]
    assert plan(models, requests_for("c")) == [Transition("b", COLD)]


# Slots, drains, idle times, shrunken memory


def test_an_idle_time_of_zero_waits_for_the_request_it_was_loaded_for() -> None:
    just_loaded = replica("a", AWAKE, idle_s=0.0, idle_since=NOW, awaiting_arrivals=True)
    assert plan([just_loaded]) == []
    assert plan([replica("a", AWAKE, idle_s=0.0, idle_since=NOW)]) == [Transition("a", COLD)]


def test_max_awake_is_respected() -> None:
    models = [replica("a", AWAKE, 1, idle_since=2), replica("b", AWAKE, 1, idle_since=1), replica("c", ram=1)]
    assert plan(models, requests_for("c"), max_awake=2) == [Transition("b", COLD)]
    assert plan(models, requests_for("c"), max_awake=3) == [Transition("c", AWAKE)]
    models[1] = replica("b", AWAKE, 1, in_transition=True)
    assert plan(models, requests_for("c"), max_awake=2, parallel_loads=2) == [Transition("a", COLD)]


def test_a_drain_is_cancelled_if_nobody_needs_the_memory() -> None:
    assert plan([replica("a", AWAKE, draining=True, running=1), replica("b")]) == [CancelDrain("a")]
    assert plan([replica("a", AWAKE, draining=True, pinned=True)]) == [CancelDrain("a")]
    assert plan([replica("a", ASLEEP, draining=True), replica("b", draining=True)]) == []


def test_a_drain_is_cancelled_for_the_oldest_request() -> None:
    draining = replica("a", AWAKE, draining=True, running=1)
    assert plan([draining, replica("b")], requests_for("a", "b")) == [CancelDrain("a")]
    assert plan([draining, replica("b")], requests_for("b", "a")) == []


def test_a_drain_is_cancelled_if_an_idle_model_can_leave_instead() -> None:
    models = [
        replica("a", AWAKE, 50, draining=True, running=1), replica("b", AWAKE, 50), replica("c", ram=50),
    ]  # fmt: skip
    assert plan(models, requests_for("c")) == [Transition("b", COLD), CancelDrain("a")]


@pytest.mark.parametrize("state", [AWAKE, ASLEEP])
def test_a_model_idle_for_too_long_is_unloaded(state: ReplicaState) -> None:
    def idle(**more: Any) -> list[ReplicaSnapshot]:
        return [replica("a", state, **{"idle_since": NOW - 10, "idle_s": 10, **more})]

    assert plan(idle()) == [Transition("a", COLD)]
    for more in ({"idle_s": 11}, {"idle_s": None}, {"pinned": True}, {"running": 1}, {"in_transition": True}):
        assert plan(idle(**more)) == []
    assert Transition("a", COLD) not in plan(idle(), requests_for("a"))


def test_shrunken_memory_evicts_nothing_until_a_request_waits() -> None:
    models = [replica("a", AWAKE, 60), replica("b", AWAKE, 30), replica("c", ram=10)]
    assert plan(models, memory={"ram": 50}) == []
    # A waiting request evicts to fit into what is left.
    assert plan(models, requests_for("c"), memory={"ram": 50}) == [Transition("a", COLD)]


def test_a_pool_over_capacity_blocks_only_models_that_need_it() -> None:
    models = [replica("a", AWAKE, 60), on_gpu("b", ASLEEP, asleep_ram=50)]
    assert plan(models, requests_for("b"), {"ram": 90, "gpu0": 100}) == [Transition("b", AWAKE)]


def test_a_transition_holds_the_larger_memory_of_both_states() -> None:
    waking = on_gpu("a", AWAKE, in_transition=True, asleep_ram=80, gpu=10)
    b = on_gpu("b", COLD, ram=30, gpu=10)
    assert plan([waking, b], requests_for("b"), GPU, parallel_loads=2) == []
    loading = on_gpu("a", AWAKE, in_transition=True, previous_state=COLD, asleep_ram=80, gpu=10)
    assert plan([loading, b], requests_for("b"), GPU, parallel_loads=2) == [Transition("b", AWAKE)]


# Wait estimates


def estimate(
    models: list[ReplicaSnapshot], model: str, *queue: str, memory: dict[str, int] = MEMORY, **limits: Any
) -> float:
    return estimate_wait(NOW, memory, models, requests_for(*queue), PlannerLimits(**limits), model)


def test_estimate_for_an_awake_or_loading_model() -> None:
    assert estimate([replica("a", AWAKE)], "a") == 0
    assert estimate([replica("a", AWAKE, in_transition=True, time_to_ready_s=3)], "a") == 3
    assert estimate([replica("a", time_to_ready_s=5)], "a") == 5
    assert estimate([replica("a", time_to_ready_s=5, retry_at=NOW + 2)], "a") == 7


def test_estimate_for_a_model_that_can_never_load() -> None:
    assert estimate([replica("a", ram=101)], "a") == math.inf
    assert estimate([], "a") == math.inf


def test_estimate_includes_the_minimum_residency_of_evicted_models() -> None:
    models = [replica("a", AWAKE, awake_since=NOW - 4, min_residency_s=10, running=2), replica("b", time_to_ready_s=5)]
    assert estimate(models, "b") == 6 + 5


def test_estimate_includes_the_models_ahead() -> None:
    models = [
        replica("a", AWAKE, awake_since=NOW - 4, min_residency_s=10), replica("b", time_to_ready_s=5, min_residency_s=20),
        replica("c", time_to_ready_s=7),
    ]  # fmt: skip
    assert estimate(models, "c", "b") == 6 + 5 + 20 + 7
    assert estimate(models, "c", "c", "b") == 6 + 7
    assert estimate(models, "b", "c", "b") == 6 + 7 + 5


def test_estimate_adds_up_loads_unless_they_run_in_parallel() -> None:
    models = [replica("a", ram=10, time_to_ready_s=5), replica("b", ram=10, time_to_ready_s=7)]
    assert estimate(models, "b", "a") == 12
    assert estimate(models, "b", "a", parallel_loads=2) == 7


def test_estimate_for_a_draining_model() -> None:
    models = [
        replica("a", AWAKE, draining=True, time_to_ready_s=3),
        replica("b", time_to_ready_s=5, min_residency_s=10),
    ]
    assert estimate(models, "a", "b") == 5 + 10 + 3
    assert estimate(models, "a") == 0
