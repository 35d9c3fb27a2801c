"""How many replicas run: examples, and properties over random loads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.sections.replica_policy import ReplicaPolicy
from enginebay.fleet.scheduling.replica_scaling import ScalingDecision, ScalingWindow, VariantLoad, plan_scaling

AUTO = ReplicaPolicy(0, 4, target_running=10, idle_s=60.0)


def decide(
    load: VariantLoad, policy: ReplicaPolicy = AUTO, now: float = 0.0, since: float | None = None
) -> ScalingDecision:
    return plan_scaling(now, policy, load, ScalingWindow(since))


def test_a_model_that_is_not_loaded_is_left_alone() -> None:
    assert decide(VariantLoad(0, waiting=5, waiting_s=9)).target == 0


def test_it_grows_to_what_the_requests_need() -> None:
    decision = decide(VariantLoad(1, running=25))
    assert decision.target == 3 and decision.reason == "25 requests running and 0 waiting, target 10 per replica"
    assert decide(VariantLoad(1, running=500)).target == 4
    assert decide(VariantLoad(1, running=10)).target == 1


def test_it_grows_while_requests_wait_but_not_for_a_burst() -> None:
    assert decide(VariantLoad(2, running=4, waiting=3, waiting_s=0.2)).target == 2
    decision = decide(VariantLoad(2, running=4, waiting=3, waiting_s=1.5))
    assert decision.target == 3 and decision.reason == "3 requests waiting, for 1.5 s so far"
    assert decide(VariantLoad(3, loading=1, running=4, waiting=3, waiting_s=1.5)).target == 3, "one is on its way"


def test_an_engine_that_runs_fewer_than_the_target_grows_at_its_own_limit() -> None:
    assert decide(VariantLoad(1, running=4, waiting=5, waiting_s=2, max_batch=4)).target == 3


def test_it_shrinks_after_the_idle_time_to_the_most_that_was_needed() -> None:
    window = decide(VariantLoad(4, running=5)).window
    window = plan_scaling(30.0, AUTO, VariantLoad(4, running=15), window).window
    assert plan_scaling(59.0, AUTO, VariantLoad(4), window).target == 4
    decision = plan_scaling(60.0, AUTO, VariantLoad(4), window)
    assert decision.target == 2 and decision.reason == "2 replicas were enough for 60 s"


def test_it_shrinks_to_zero_only_where_the_minimum_is() -> None:
    idle = VariantLoad(2)
    assert decide(idle, now=60.0, since=0.0).target == 0
    assert decide(idle, ReplicaPolicy(1, 4, 10, 60.0), now=60.0, since=0.0).target == 1
    assert decide(VariantLoad(2, running=1), now=60.0, since=0.0).target == 1


def test_a_request_that_no_poll_saw_keeps_a_replica() -> None:
    assert decide(VariantLoad(2, quiet_s=59.0), now=60.0, since=0.0).target == 1
    fixed = ReplicaPolicy(2, 2)
    assert decide(VariantLoad(2, quiet_s=59.0, idle_s=60.0), fixed, now=60.0, since=0.0).target == 2


def test_a_fixed_number_fills_up_and_leaves_as_one() -> None:
    three = ReplicaPolicy(3, 3)
    decision = decide(VariantLoad(1), three)
    assert decision.target == 3 and decision.reason == "replicas is 3"
    assert decide(VariantLoad(3), three, now=1e6, since=0.0).target == 3, "no idle time is set"
    assert decide(VariantLoad(3, idle_s=60.0), three, now=60.0, since=0.0).target == 0
    assert decide(VariantLoad(3, running=1, idle_s=60.0), three, now=60.0, since=0.0).target == 3


loads = st.tuples(st.floats(0, 40), st.integers(0, 60), st.integers(0, 30))  # seconds to it, running, waiting


@given(st.integers(0, 3), st.integers(1, 6), st.integers(1, 20), st.lists(loads, max_size=40))
def test_the_number_stays_in_bounds_and_falls_only_after_the_idle_time(
    minimum: int, maximum: int, target: int, history: list[tuple[float, int, int]]
) -> None:
    policy = ReplicaPolicy(min(minimum, maximum), maximum, target, idle_s=30.0)
    now, awake, window, rose_or_needed_at = 0.0, 1, ScalingWindow(), 0.0
    for seconds, running, waiting in history:
        now += seconds
        load = VariantLoad(awake, running=running, waiting=waiting, waiting_s=5.0 if waiting else 0.0)
        decision = plan_scaling(now, policy, load, window)
        window = decision.window
        assert decision.target <= maximum
        assert awake == 0 or decision.target >= min(policy.minimum, awake)
        if decision.target != awake:
            assert decision.reason
        if decision.target < awake:
            assert now - rose_or_needed_at >= 30.0, "it was needed or new a moment ago"
            assert decision.target * target >= min(running, decision.target * target)
        if decision.target > awake or running + waiting > (awake - 1) * target:
            rose_or_needed_at = now
        awake = decision.target
        if awake == 0:
            return
