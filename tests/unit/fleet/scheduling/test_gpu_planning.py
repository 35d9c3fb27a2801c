"""The planner on several GPUs: random hosts, models and failures, beside a brute-force search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.fleet.scheduling.device_placement import (
    WHOLE_GPU,
    GpuLinks,
    GpuNeed,
    Placement,
    add_pools,
    add_shares,
    list_gpus,
)
from enginebay.fleet.scheduling.planner import (
    Drain,
    PlannerAction,
    PlannerLimits,
    ReplicaSnapshot,
    ReplicaState,
    Transition,
    WaitingRequest,
    estimate_wait,
    plan_actions,
)
from tests.unit.fleet.planner_simulation import History, SimulatedModel, simulate
from tests.unit.fleet.scheduling.test_planner_histories import QUARTERS, arrivals

NAMES = "abcdef"
ROOMY = {"ram": 1000}
NO_LINKS = GpuLinks()


def snapshot(name: str, need: GpuNeed, placement: Placement | None = None, **fields: object) -> ReplicaSnapshot:
    """A cold replica, or an awake one on these GPUs."""
    state = ReplicaState.COLD if placement is None else ReplicaState.AWAKE
    cold = ReplicaSnapshot(name=name, state=state, awake_bytes={"ram": 1}, asleep_bytes=None, gpu_need=need)
    placed = cold if placement is None else cold.place(placement)
    return replace(placed, **fields)  # type: ignore[arg-type]


def plan(
    sizes: Sequence[int], replicas: Sequence[ReplicaSnapshot], *waiting: str, links: GpuLinks = NO_LINKS
) -> list[PlannerAction]:
    memory = {**ROOMY, **{f"gpu{gpu}": size for gpu, size in enumerate(sizes)}}
    queue = [WaitingRequest(number, name, number, math.inf) for number, name in enumerate(waiting)]
    return plan_actions(1000.0, memory, replicas, queue, PlannerLimits(parallel_loads=8, links=links))


def fits(placed: Sequence[tuple[GpuNeed, Placement]], sizes: Sequence[int]) -> bool:
    held: dict[str, int] = {}
    for need, placement in placed:
        held = add_pools(held, need.to_pools(placement))
    capacity = add_shares({f"gpu{gpu}": size for gpu, size in enumerate(sizes)})
    return all(amount <= capacity.get(pool, 0) for pool, amount in held.items())


def list_placements(need: GpuNeed, gpus: int) -> list[Placement]:
    return [need.only] if need.only else list(permutations(range(gpus), need.count))


def can_place_all(needs: Sequence[GpuNeed], sizes: Sequence[int], *placed: tuple[GpuNeed, Placement]) -> bool:
    """Try every placement of every need."""
    if not needs:
        return True
    return any(
        fits([*placed, (needs[0], placement)], sizes)
        and can_place_all(needs[1:], sizes, *placed, (needs[0], placement))
        for placement in list_placements(needs[0], len(sizes))
    )


# Examples


def test_two_models_of_one_gpu_land_on_two() -> None:
    actions = plan([80] * 8, [snapshot("a", GpuNeed((73,))), snapshot("b", GpuNeed((73,)))], "a", "b")
    assert [(it.name, it.placement) for it in actions if isinstance(it, Transition)] == [("a", (0,)), ("b", (1,))]


def test_the_reason_names_neighbours_and_choices() -> None:
    beside = snapshot("small", GpuNeed((10,)), (2,))
    (load,) = plan([80] * 4, [beside, snapshot("b", GpuNeed((10,)))], "b")
    assert isinstance(load, Transition)
    assert (load.placement, load.reason) == ((2,), "the fullest of 4 GPUs with room, beside small")


def test_tensor_parallel_takes_linked_gpus() -> None:
    links = GpuLinks(frozenset({(0, 3), (1, 2)}))
    full = snapshot("full", GpuNeed((70,), WHOLE_GPU), (0,))
    (load,) = plan([80] * 4, [full, snapshot("tp", GpuNeed((70, 70), WHOLE_GPU))], "tp", links=links)
    assert isinstance(load, Transition)
    assert load.placement == (1, 2) and load.reason.startswith("linked GPUs")


def test_tensor_parallel_takes_unlinked_gpus_rather_than_none() -> None:
    links = GpuLinks(frozenset({(0, 1), (2, 3)}))
    taken = [snapshot(str(gpu), GpuNeed((70,), WHOLE_GPU), (gpu,)) for gpu in (0, 2)]
    (load,) = plan([80] * 4, [*taken, snapshot("tp", GpuNeed((70, 70), WHOLE_GPU))], "tp", links=links)
    assert isinstance(load, Transition)
    assert load.placement == (1, 3) and load.reason.startswith("GPUs not all linked")


def test_links_decide_among_many_gpus() -> None:
    """More combinations than are compared: the linked group is among them."""
    links = GpuLinks(frozenset((one, other) for one in range(8, 16) for other in range(one + 1, 16)))
    (load,) = plan([80] * 16, [snapshot("tp", GpuNeed((70,) * 8, WHOLE_GPU))], "tp", links=links)
    assert isinstance(load, Transition) and load.placement == tuple(range(8, 16))


def test_the_last_gpus_of_many_are_found() -> None:
    taken = [snapshot(str(gpu), GpuNeed((70,), WHOLE_GPU), (gpu,), pinned=True) for gpu in range(8)]
    (load,) = plan([80] * 16, [*taken, snapshot("tp", GpuNeed((70,) * 8, WHOLE_GPU))], "tp")
    assert isinstance(load, Transition) and load.placement == tuple(range(8, 16))


def test_an_idle_model_leaves_rather_than_a_busy_one() -> None:
    busy = snapshot("busy", GpuNeed((70,)), (0,), running=1)
    idle = snapshot("idle", GpuNeed((70,)), (1,))
    actions = plan([80, 80], [busy, idle, snapshot("new", GpuNeed((70,)))], "new")
    assert actions == [Transition("idle", ReplicaState.COLD)]


def test_what_began_to_leave_goes_on() -> None:
    draining = snapshot("one", GpuNeed((70,)), (0,), running=1, draining=True)
    busy = snapshot("two", GpuNeed((70,)), (1,), running=1)
    assert plan([80, 80], [draining, busy, snapshot("new", GpuNeed((70,)))], "new") == []


def test_a_model_that_is_leaving_evicts_nobody_to_come_back() -> None:
    leaving = replace(
        snapshot("leaving", GpuNeed((70,)), (0,)),
        state=ReplicaState.COLD, in_transition=True, previous_state=ReplicaState.AWAKE,
    )  # fmt: skip
    beside = snapshot("beside", GpuNeed((5,)), (0,))
    assert plan([80, 80], [leaving, beside], "leaving") == []
    cold = snapshot("leaving", GpuNeed((70,)))
    (load,) = plan([80, 80], [cold, beside], "leaving")
    assert isinstance(load, Transition) and load.placement in ((0,), (1,))


def test_a_fraction_does_not_move_a_pinned_model() -> None:
    pinned = snapshot("pinned", GpuNeed((10,), 700), (0,), pinned=True)
    idle = snapshot("idle", GpuNeed((10,), WHOLE_GPU), (1,))
    actions = plan([80, 80], [pinned, idle, snapshot("new", GpuNeed((10,), 500))], "new")
    assert actions == [Transition("idle", ReplicaState.COLD)]


def test_a_sleeping_model_moves_if_a_pinned_one_holds_its_gpu() -> None:
    asleep = replace(
        snapshot("asleep", GpuNeed((70,)), (0,)), state=ReplicaState.ASLEEP, asleep_bytes={"ram": 1, "gpu0": 1}
    )
    pinned = snapshot("pinned", GpuNeed((70,)), (0,), pinned=True)
    assert plan([80, 80], [asleep, pinned], "asleep") == [Transition("asleep", ReplicaState.COLD)]


def test_a_model_of_a_lost_gpu_is_rejected_and_others_move() -> None:
    memory = {**ROOMY, "gpu0": 80}
    tied, free = snapshot("tied", GpuNeed((70,), only=(1,))), snapshot("free", GpuNeed((70,)))
    queue = [WaitingRequest(0, "tied", 0, math.inf), WaitingRequest(1, "free", 1, math.inf)]
    reject, load = plan_actions(0.0, memory, [tied, free], queue, PlannerLimits())
    assert (reject.id, reject.reason) == (0, "memory")  # type: ignore[union-attr]
    assert isinstance(load, Transition) and load.placement == (0,)


def test_crashed_models_reload_one_after_the_other_on_one_gpu_and_at_once_on_two() -> None:
    memory = {**ROOMY, "gpu0": 80, "gpu1": 80}
    queue = [WaitingRequest(number, name, number, math.inf) for number, name in enumerate("ab")]
    for second, loads in ((0, ["a"]), (1, ["a", "b"])):
        crashed = [
            snapshot(name, GpuNeed((30,), only=(gpu,)), recovering=True) for name, gpu in (("a", 0), ("b", second))
        ]
        actions = plan_actions(0.0, memory, crashed, queue, PlannerLimits())
        assert [it.name for it in actions if isinstance(it, Transition)] == loads


def test_the_wait_for_a_gpu_is_estimated() -> None:
    memory = {**ROOMY, "gpu0": 80}
    replicas = [snapshot(name, GpuNeed((70,)), time_to_ready_s=5.0) for name in "ab"]
    queue = [WaitingRequest(0, "a", 0, math.inf)]
    assert estimate_wait(0.0, memory, replicas, queue, PlannerLimits(), "b") == pytest.approx(10.0)


# Properties

SINGLE = st.builds(
    lambda size, share: GpuNeed((size,), share), st.integers(1, 10), st.sampled_from([1, 1, 300, 500, WHOLE_GPU])
)
PAIR = st.builds(
    lambda sizes, share: GpuNeed(tuple(sizes), share),
    st.lists(st.integers(1, 10), min_size=2, max_size=2),
    st.sampled_from([1, WHOLE_GPU]),
)
SIZES = st.lists(st.integers(5, 12), min_size=2, max_size=4)


@st.composite
def needs(draw: st.DrawFn, gpus: int) -> GpuNeed:
    need = draw(SINGLE | PAIR)
    if draw(st.integers(0, 4)) == 0:
        chosen = draw(st.permutations(range(gpus)))[: need.count]
        return replace(need, only=tuple(chosen))
    return need


@settings(max_examples=150)
@given(st.data())
def test_all_models_load_when_a_fit_exists(data: st.DataObject) -> None:
    """Each stays once it is loaded, so the planner has to place the first so that the last still fits."""
    sizes = data.draw(SIZES)
    wanted = [data.draw(needs(len(sizes))) for _ in range(data.draw(st.integers(1, 6)))]
    replicas = {name: snapshot(name, need) for name, need in zip(NAMES, wanted, strict=False)}
    for _ in wanted:
        for action in plan(sizes, list(replicas.values()), *replicas):
            if isinstance(action, Transition) and action.placement is not None:
                placed = replicas[action.name].place(action.placement)
                replicas[action.name] = replace(placed, state=ReplicaState.AWAKE, pinned=True)
    loaded = [(it.gpu_need, it.placement) for it in replicas.values() if it.gpu_need and it.placement is not None]
    assert fits(loaded, sizes)
    assert (len(loaded) == len(wanted)) == can_place_all(wanted, sizes)


@st.composite
def hosts(draw: st.DrawFn) -> tuple[list[int], list[ReplicaSnapshot]]:
    """Generate a host with models that sit on its GPUs and fit there."""
    sizes = draw(SIZES)
    sitting: list[tuple[GpuNeed, Placement]] = []
    replicas = []
    for name in NAMES[: draw(st.integers(0, 4))]:
        need = draw(needs(len(sizes)))
        placement = draw(st.sampled_from(list_placements(need, len(sizes))))
        if fits([*sitting, (need, placement)], sizes):
            sitting.append((need, placement))
            busy, pinned = draw(st.integers(0, 1)), draw(st.sampled_from([False, False, True]))
            replicas.append(snapshot(name, need, placement, running=busy, pinned=pinned))
    return sizes, replicas


@settings(max_examples=300)
@given(hosts(), st.data())
def test_nothing_moves_when_a_free_placement_exists(
    host: tuple[list[int], list[ReplicaSnapshot]], data: st.DataObject
) -> None:
    sizes, replicas = host
    need = data.draw(needs(len(sizes)))
    sitting = [(it.gpu_need, it.placement) for it in replicas if it.gpu_need and it.placement is not None]
    free = [it for it in list_placements(need, len(sizes)) if fits([*sitting, (need, it)], sizes)]
    actions = plan(sizes, [*replicas, snapshot("new", need)], "new")
    if free:
        (load,) = actions
        assert isinstance(load, Transition) and load.name == "new" and load.placement in free
        return
    assert not any(isinstance(it, Transition) and it.to is ReplicaState.AWAKE for it in actions)
    pinned = [(it.gpu_need, it.placement) for it in replicas if it.pinned and it.gpu_need and it.placement is not None]
    possible = [it for it in list_placements(need, len(sizes)) if fits([*pinned, (need, it)], sizes)]
    assert bool(actions) == bool(possible) or any(it.reason == "memory" for it in actions)  # type: ignore[union-attr]
    assert possible or not any(isinstance(it, Drain | Transition) for it in actions)


@settings(max_examples=150)
@given(hosts(), st.data())
def test_as_few_models_leave_as_one_placement_needs(
    host: tuple[list[int], list[ReplicaSnapshot]], data: st.DataObject
) -> None:
    """Of idle models, no more leave than the cheapest placement needs."""
    sizes, replicas = host
    replicas = [replace(it, running=0, pinned=False) for it in replicas]
    need = data.draw(needs(len(sizes)))
    leaving = {it.name for it in plan(sizes, [*replicas, snapshot("new", need)], "new") if isinstance(it, Transition)}
    leaving.discard("new")
    by_placement = [_count_leaving(need, it, replicas, sizes) for it in list_placements(need, len(sizes))]
    fewest = min((count for count in by_placement if count is not None), default=0)
    assert len(leaving) <= fewest


def _count_leaving(
    need: GpuNeed, placement: Placement, replicas: Sequence[ReplicaSnapshot], sizes: Sequence[int]
) -> int | None:
    """Return how many models leave for this placement if they leave in order; None: it does not fit alone."""
    if not fits([(need, placement)], sizes):
        return None
    near = [it for it in replicas if it.placement and set(it.placement) & set(need.list_used(placement))]
    far = [it for it in replicas if it not in near]
    for count in range(len(near) + 1):
        kept = [(it.gpu_need, it.placement) for it in (*near[count:], *far) if it.gpu_need and it.placement is not None]
        if fits([*kept, (need, placement)], sizes):
            return count
    return None


@st.composite
def histories(draw: st.DrawFn) -> History:
    gpus = draw(st.integers(1, 4))
    names = NAMES[: draw(st.integers(1, 5))]
    models = [
        SimulatedModel(
            name=name,
            awake={"ram": draw(st.integers(1, 3))},
            gpu_need=draw(st.none() | SINGLE | PAIR.filter(lambda _: gpus > 1)),
            asleep=draw(st.none() | st.just({"ram": 2})),
            asleep_gpu=draw(st.integers(0, 1)),
            pinned=draw(st.sampled_from([False, False, False, True])),
            load_s=draw(QUARTERS),
            idle_s=draw(st.none() | QUARTERS),
            min_residency_s=draw(st.sampled_from([0.0, 1.0])),
            failures=draw(st.sampled_from([0, 0, 1])),
        )
        for name in names
    ]
    return History(
        models=models,
        arrivals=draw(arrivals(names, QUARTERS | st.just(300.0))),
        memory={"ram": draw(st.integers(6, 12)), **{f"gpu{gpu}": draw(st.integers(4, 12)) for gpu in range(gpus)}},
        lost_gpus=draw(st.lists(st.tuples(QUARTERS, st.integers(0, gpus - 1)), max_size=2)),
        limits=PlannerLimits(parallel_loads=draw(st.integers(1, 3)), max_awake=draw(st.sampled_from([None, None, 2]))),
        late=draw(st.booleans()),
        reports_origin=draw(st.booleans()),
    )


@settings(max_examples=200)
@given(histories())
def test_no_gpu_is_ever_over_full_and_every_request_ends(history: History) -> None:
    assert simulate(history).ends.total() == len(history.arrivals)


def test_the_host_lists_its_gpus_only() -> None:
    assert list_gpus({"ram": 1, "gpu0": 1, "gpu10": 1, "gpu0.share": 1, "slots": 1}) == [0, 10]
