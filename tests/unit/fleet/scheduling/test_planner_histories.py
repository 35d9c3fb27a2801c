"""The planner's guarantees over random histories. The simulation is shown to catch broken planners."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.fleet.scheduling.planner import (
    CancelDrain,
    Drain,
    PlannerAction,
    PlannerLimits,
    ReplicaSnapshot,
    ReplicaState,
    Transition,
    WaitingRequest,
    plan_actions,
)
from tests.unit.fleet.planner_simulation import (
    History,
    Planner,
    PromiseBroken,
    SimulatedArrival,
    SimulatedModel,
    count_fcfs_loads,
    simulate,
)

QUARTERS = st.integers(0, 40).map(lambda n: n / 4)
NAMES = "abcdef"


@st.composite
def models(draw: st.DrawFn, name: str) -> SimulatedModel:
    on_gpu = draw(st.booleans())
    awake = {"ram": draw(st.integers(1, 6)), **({"gpu0": draw(st.integers(1, 8))} if on_gpu else {})}
    asleep = draw(st.none() | st.fixed_dictionaries({"ram": st.integers(1, 8), "gpu0": st.integers(0, 1)}))
    return SimulatedModel(
        name=name,
        awake=awake,
        asleep=asleep,
        pinned=draw(st.sampled_from([False, False, False, True])),
        load_s=draw(QUARTERS),
        wake_s=draw(st.sampled_from([0.0, 0.25, 2.0])),
        release_s=draw(st.sampled_from([0.0, 0.25, 2.0])),
        idle_s=draw(st.none() | QUARTERS),
        min_residency_s=draw(st.sampled_from([0.0, 0.0, 1.0, 5.0])),
        failures=draw(st.sampled_from([0, 0, 0, 1, 2])),
    )


def arrivals(
    names: Sequence[str], waits: st.SearchStrategy[float], cancels: bool = True
) -> st.SearchStrategy[list[SimulatedArrival]]:
    cancelled = st.none() | QUARTERS if cancels else st.none()
    return st.lists(
        st.builds(
            SimulatedArrival, at=QUARTERS, model=st.sampled_from(names), service_s=QUARTERS, wait_s=waits, cancel_s=cancelled
        ),
        min_size=6,
        max_size=24,
    )  # fmt: skip


MEMORY = st.fixed_dictionaries({"ram": st.integers(6, 16), "gpu0": st.integers(4, 12)})


@st.composite
def histories(draw: st.DrawFn, patient: bool = False) -> History:
    """Generate histories. `patient`: no timeouts, so only progress ends a history."""
    names = NAMES[: draw(st.integers(1, 5))]
    return History(
        models=[draw(models(name)) for name in names],
        arrivals=draw(
            arrivals(names, st.just(math.inf) if patient else QUARTERS | st.just(300.0), cancels=not patient)
        ),
        memory=draw(MEMORY),
        memory_later=() if patient else draw(st.lists(st.tuples(QUARTERS, MEMORY), max_size=2)),
        limits=PlannerLimits(
            max_awake=draw(st.sampled_from([None, None, 1, 2])), parallel_loads=draw(st.integers(1, 3))
        ),
        late=draw(st.booleans()),
        reports_origin=draw(st.booleans()),
    )


@settings(max_examples=120)
@given(histories())
def test_every_guarantee_holds_and_every_request_ends(history: History) -> None:
    assert simulate(history).ends.total() == len(history.arrivals)


@settings(max_examples=60)
@given(histories(patient=True))
def test_every_patient_request_is_answered_unless_its_model_cannot_fit(history: History) -> None:
    ends = simulate(history).ends
    assert ends["answered"] + ends["rejected: memory"] == len(history.arrivals)


@st.composite
def one_slot(draw: st.DrawFn) -> History:
    names = NAMES[: draw(st.integers(2, 5))]
    return History(
        models=[
            SimulatedModel(
                name=name,
                awake={"ram": 1},
                load_s=draw(QUARTERS),
                release_s=draw(st.sampled_from([0.0, 0.25])),
                min_residency_s=draw(st.sampled_from([0.0, 1.0, 5.0])),
            )
            for name in names
        ],
        arrivals=sorted(draw(arrivals(names, st.just(math.inf), cancels=False)), key=lambda it: it.at),
        memory={"ram": 1},
        limits=PlannerLimits(parallel_loads=draw(st.integers(1, 2))),
        late=draw(st.booleans()),
    )


@settings(max_examples=120)
@given(one_slot())
def test_with_one_slot_never_more_loads_than_first_come_first_served(history: History) -> None:
    outcome = simulate(history)
    assert outcome.ends["answered"] == len(history.arrivals)
    assert outcome.loads <= count_fcfs_loads([it.model for it in history.arrivals], slots=1)


def several_slots(seed: int) -> tuple[History, int]:
    chance = random.Random(seed)
    names, slots = NAMES[: chance.randint(4, 6)], chance.randint(2, 3)
    pace = chance.choice([0.2, 1.0, 3.0])  # of arrivals, against loads of one second
    moments = [chance.expovariate(1.0) * pace for _ in range(12)]
    history = History(
        models=[SimulatedModel(name=name, awake={"ram": 1}, min_residency_s=chance.choice([0.0, 1.0])) for name in names],
        arrivals=[
            SimulatedArrival(at=sum(moments[: n + 1]), model=chance.choice(names), service_s=chance.uniform(0.1, 2.0))
            for n in range(len(moments))
        ],
        memory={"ram": slots},
        limits=PlannerLimits(parallel_loads=chance.randint(1, slots)),
    )  # fmt: skip
    return history, slots


def test_over_a_thousand_histories_fewer_loads_than_first_come_first_served() -> None:
    planned = as_they_came = 0
    for seed in range(1000):
        history, slots = several_slots(seed)
        outcome = simulate(history)
        assert outcome.ends["answered"] == len(history.arrivals)
        planned += outcome.loads
        as_they_came += count_fcfs_loads([it.model for it in history.arrivals], slots)
    assert planned < as_they_came


# The simulation catches broken planners.


def spoiled(
    spoil: Callable[[float, Sequence[ReplicaSnapshot], Sequence[WaitingRequest]], list[PlannerAction] | None],
) -> Planner:
    """Wrap the planner: `spoil` may override its actions."""

    def planner(
        now: float,
        memory: Mapping[str, int],
        replicas: Sequence[ReplicaSnapshot],
        waiting: Sequence[WaitingRequest],
        limits: PlannerLimits,
    ) -> list[PlannerAction]:
        worse = spoil(now, replicas, waiting)
        return plan_actions(now, memory, replicas, waiting, limits) if worse is None else worse

    return planner


def evicts_the_busy(
    _: float, replicas: Sequence[ReplicaSnapshot], waiting: Sequence[WaitingRequest]
) -> list[PlannerAction] | None:
    busy = [it for it in replicas if it.running and not it.in_transition]
    return [Transition(busy[0].name, ReplicaState.COLD)] if busy and waiting else None


def evicts_the_pinned(
    _: float, replicas: Sequence[ReplicaSnapshot], waiting: Sequence[WaitingRequest]
) -> list[PlannerAction] | None:
    pinned = [
        it
        for it in replicas
        if it.pinned and it.state is ReplicaState.AWAKE and not it.running and not it.in_transition
    ]
    return [Transition(pinned[0].name, ReplicaState.COLD)] if pinned and waiting else None


def ignores_memory(
    _: float, replicas: Sequence[ReplicaSnapshot], waiting: Sequence[WaitingRequest]
) -> list[PlannerAction] | None:
    awaited = {it.model for it in waiting}
    cold = [it for it in replicas if it.name in awaited and it.state is ReplicaState.COLD and not it.in_transition]
    return [Transition(it.name, ReplicaState.AWAKE) for it in cold] or None


def does_nothing(
    _: float, replicas: Sequence[ReplicaSnapshot], waiting: Sequence[WaitingRequest]
) -> list[PlannerAction] | None:
    return []


def never_rests(
    _: float, replicas: Sequence[ReplicaSnapshot], waiting: Sequence[WaitingRequest]
) -> list[PlannerAction] | None:
    awake = [it for it in replicas if it.state is ReplicaState.AWAKE and not it.in_transition and not it.pinned]
    return [CancelDrain(it.name) if it.draining else Drain(it.name) for it in awake] or None


CONTENDED = History(
    models=[
        SimulatedModel(name="a", awake={"ram": 2}),
        SimulatedModel(name="b", awake={"ram": 2}),
        SimulatedModel(name="p", awake={"ram": 1}, pinned=True, starts_awake=True),
    ],
    arrivals=[SimulatedArrival(at=float(n), model="ab"[n % 2], service_s=2.5, wait_s=60.0) for n in range(6)],
    memory={"ram": 3},
    limits=PlannerLimits(parallel_loads=2),
)


def test_the_contended_history_completes() -> None:
    assert simulate(CONTENDED).ends == {"answered": 6}


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (evicts_the_busy, "a is busy"),
        (evicts_the_pinned, "p is pinned"),
        (ignores_memory, "held of 3 in ram"),
        (does_nothing, "waits beyond its deadline"),
        (never_rests, "does not settle"),
    ],
)
def test_the_simulation_catches_a_planner_that(
    spoil: Callable[[float, Sequence[ReplicaSnapshot], Sequence[WaitingRequest]], list[PlannerAction] | None],
    complaint: str,
) -> None:
    with pytest.raises(PromiseBroken, match=complaint):
        simulate(CONTENDED, spoiled(spoil))


def unloads_at_once(
    _: float, replicas: Sequence[ReplicaSnapshot], waiting: Sequence[WaitingRequest]
) -> list[PlannerAction] | None:
    idle = [it for it in replicas if it.state is ReplicaState.AWAKE and not it.in_transition and not it.running]
    return [Transition(it.name, ReplicaState.COLD) for it in idle] if idle and not waiting else None


def test_a_planner_that_unloads_at_once_loads_more_than_first_come_first_served() -> None:
    """Otherwise the comparisons above could not fail."""
    arrivals = [SimulatedArrival(at=n * 10.0, model="a") for n in range(3)]
    history = History(models=[SimulatedModel(name="a", awake={"ram": 1})], arrivals=arrivals, memory={"ram": 1})
    assert simulate(history).loads == count_fcfs_loads("aaa", slots=1) == 1
    assert simulate(history, spoiled(unloads_at_once)).loads == 3
