"""Routing to replicas: examples, and properties over random requests."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from enginebay.fleet.routing.replica_router import BLOCK_TOKENS, MAX_LOAD_FACTOR, LoadTable, ReplicaRouter, hash_blocks


def make_router(count: int, capacity: int = 0) -> ReplicaRouter:
    router = ReplicaRouter()
    names = {f"unix:/{number}": f"toy#{number}" for number in range(1, count + 1)}
    router.set_replicas(names, dict.fromkeys(names, capacity))
    return router


def prompt(*blocks: int) -> tuple[int, ...]:
    return tuple(block for block in blocks for _ in range(BLOCK_TOKENS))


def test_a_session_stays_on_its_replica() -> None:
    router = make_router(8)
    first = router.choose("alice")
    assert first.reason == "session"
    assert {router.choose("alice").replica for _ in range(10)} == {first.replica}


def test_sessions_are_placed_alike_in_every_process() -> None:
    """Also after a restart of a replica, which keeps its name and gets another address."""
    one, other = make_router(5), ReplicaRouter()
    other.set_replicas({f"unix:/later{number}": f"toy#{number}" for number in range(1, 6)})
    for key in map(str, range(100)):
        chosen = one.choose(key).replica.removeprefix("unix:/")
        assert other.choose(key).replica == f"unix:/later{chosen}"


def test_a_busy_session_moves_to_the_next_replica() -> None:
    router = make_router(4)
    home = router.choose("alice").replica
    router.loads.set(home, 1)
    second = router.choose("alice").replica
    assert second != home, "others are idle"
    router.loads.set(home, 0)
    assert router.choose("alice").replica == home


def test_the_longest_known_prefix_wins() -> None:
    router = make_router(3)
    system = router.choose("", prompt(1)).replica
    router.loads.set(system, 1)
    long = router.choose("", prompt(1, 2, 3))
    assert long.replica != system and long.reason == "load"
    router.loads.set(system, 0)
    again = router.choose("", prompt(1, 2, 3, 4))
    assert (again.replica, again.reason, again.known_tokens) == (long.replica, "prefix", 3 * BLOCK_TOKENS)
    assert router.choose("", prompt(1, 9)).known_tokens == BLOCK_TOKENS


def test_a_shared_prefix_spreads_with_the_load() -> None:
    router = make_router(4)
    for number in range(40):
        router.loads.add(router.choose("", prompt(7, 100 + number)).replica, 1)
    assert max(router.loads[name] for name in router.loads.replicas) <= ceil(MAX_LOAD_FACTOR * 40 / 4)
    assert min(router.loads[name] for name in router.loads.replicas) > 0


def test_short_prompts_go_to_the_least_load_in_turn() -> None:
    router = make_router(3)
    used: Counter[str] = Counter()
    for _ in range(9):
        choice = router.choose("", (1, 2, 3))
        assert choice.reason == "load"
        router.loads.add(choice.replica, 1)
        used[choice.replica] += 1
    assert set(used.values()) == {3}


def test_one_request_after_another_uses_all_replicas() -> None:
    router, used = make_router(4), list[str]()
    for _ in range(8):
        used.append(router.choose().replica)
        router.loads.add(used[-1], 1)
        router.loads.add(used[-1], -1)
    assert used[:4] == used[4:] and len(set(used)) == 4


def test_an_adapter_goes_where_it_was_used() -> None:
    router = make_router(4)
    first = router.choose("", (1,), "poet")
    assert first.reason == "load"
    again = router.choose("", (2,), "poet")
    assert (again.replica, again.reason, again.known_tokens) == (first.replica, "adapter", 0)
    assert hash_blocks(prompt(1), "poet")[1:] != hash_blocks(prompt(1))


def test_a_full_replica_gets_nothing_while_others_have_room() -> None:
    router = make_router(2, capacity=4)
    home = router.choose("", prompt(1)).replica
    other = next(name for name in router.loads.replicas if name != home)
    router.loads.set(home, 4)
    router.loads.set(other, 3)
    assert router.choose("", prompt(1)).replica == other
    assert all(router.choose(key).replica == other for key in map(str, range(20)))


def test_a_replica_that_left_gets_nothing() -> None:
    router = make_router(3)
    home = router.choose("", prompt(1)).replica
    left = {name: name for name in router.loads.replicas if name != home}
    router.set_replicas(left)
    assert router.choose("", prompt(1)).replica in left
    assert len(router.loads) == 2


def test_hashes_are_equal_in_every_process() -> None:
    """Python randomizes the hashes of text, not of numbers."""
    code = "from enginebay.fleet.routing.replica_router import hash_blocks; print(hash_blocks(tuple(range(600)), 'a'))"
    printed = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert printed == {f"{hash_blocks(tuple(range(600)), 'a')}\n"}


def test_each_hash_covers_all_blocks_up_to_it() -> None:
    assert hash_blocks(prompt(1, 2, 3)[:-1]) == hash_blocks(prompt(1, 2))
    assert hash_blocks(prompt(1, 2)) == hash_blocks(prompt(1, 2, 3))[:2]
    assert hash_blocks(prompt(2, 1))[1] != hash_blocks(prompt(1, 2))[1]
    assert hash_blocks(prompt(3, 2))[1] != hash_blocks(prompt(1, 2))[1]


requests = st.tuples(
    st.sampled_from(["", "", "s1", "s2"]), st.lists(st.integers(0, 3), max_size=4), st.sampled_from(["", "", "poet"])
)


@given(st.integers(1, 7), st.lists(st.one_of(requests, st.integers(0, 50)), max_size=80))
def test_no_replica_exceeds_the_bound(count: int, events: list[tuple[str, list[int], str] | int]) -> None:
    """A number ends a running request. The bound holds when a request is placed."""
    router, running = make_router(count), list[str]()
    for event in events:
        if isinstance(event, int):
            if running:
                router.loads.add(running.pop(event % len(running)), -1)
            continue
        session, blocks, adapter = event
        choice = router.choose(session, prompt(*blocks), adapter)
        idle = any(router.loads[name] == 0 for name in router.loads.replicas)
        assert not idle or len(running) >= count or router.loads[choice.replica] == 0, "idle ones first"
        router.loads.add(choice.replica, 1)
        running.append(choice.replica)
        least = min(router.loads[name] for name in router.loads.replicas)
        bound = ceil(MAX_LOAD_FACTOR * len(running) / count)
        assert router.loads[choice.replica] <= max(bound, least + 1)
        assert router.loads.total == len(running)
        assert {name: router.loads[name] for name in router.loads.replicas if router.loads[name]} == Counter(running)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5), st.booleans()), max_size=100))
def test_the_load_table_knows_the_least(changes: list[tuple[str, int, bool]]) -> None:
    table, plain = LoadTable(), dict[str, int]()
    for name, load, leaves in changes:
        if leaves and name in plain:
            table.remove(name)
            del plain[name]
        else:
            table.set(name, load)
            plain[name] = load
        assert table.total == sum(plain.values()) and len(table) == len(plain)
        if plain:
            assert plain[table.find_least()] == min(plain.values())
