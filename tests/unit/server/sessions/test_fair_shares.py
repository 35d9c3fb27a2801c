"""Admission queue: what each client gets of the slots and of the queue."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from enginebay.errors import Overloaded
from enginebay.server.sessions.admission_queue import AdmissionQueue, QueueClient

A, B, C = QueueClient("a"), QueueClient("b"), QueueClient("c")


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_short_request_waits_for_one_slot_beside_many_of_another_client() -> None:
    queue = AdmissionQueue(max_running=4, max_waiting=1000, timeout_s=5)
    for _ in range(4):
        assert queue.try_enter(A)
    many = [asyncio.create_task(queue.enter(A)) for _ in range(200)]
    await settle()
    short = asyncio.create_task(queue.enter(B))
    await settle()
    assert not short.done()
    queue.leave(1.0, A)
    await short
    assert sum(task.done() for task in many) == 0, "the first free slot is B's"
    for task in many:
        task.cancel()


async def test_slots_are_shared_by_time_and_not_by_requests() -> None:
    """A's requests take 10 s, B's 1 s: both get the same time."""
    used = await _serve([(A, 10.0), (B, 1.0)], slots=1, until_s=600)
    assert used["a"] == pytest.approx(used["b"], rel=0.1), used


async def test_weights_divide_the_slots() -> None:
    heavy = QueueClient("heavy", weight=3)
    used = await _serve([(heavy, 2.0), (A, 2.0)], slots=4, until_s=400)
    assert used["heavy"] / used["a"] == pytest.approx(3, rel=0.1), used


async def _serve(clients: list[tuple[QueueClient, float]], slots: int, until_s: float) -> Counter[str]:
    """Each client always has many requests waiting, of its own duration. Return the slot time that each got."""
    clock = Clock()
    queue = AdmissionQueue(slots, 10_000, timeout_s=3600, clock=clock)
    running: list[tuple[float, int, QueueClient, float]] = []  # ends at
    used: Counter[str] = Counter()

    async def run(client: QueueClient, duration_s: float, number: int) -> None:
        await queue.enter(client)
        running.append((clock.now + duration_s, number, client, duration_s))

    tasks = [
        asyncio.create_task(run(client, duration_s, number)) for number in range(800) for client, duration_s in clients
    ]
    await settle()
    while clock.now < 100 + until_s:
        running.sort(key=lambda entry: entry[:2])
        ends_at, _, client, duration_s = running.pop(0)
        clock.now = ends_at
        used[client.name] += int(duration_s)
        queue.leave(duration_s, client)
        await settle()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return used


async def test_time_while_nobody_waited_does_not_count() -> None:
    """A client that used an idle engine for an hour owes nobody anything."""
    clock = Clock()
    queue = AdmissionQueue(max_running=1, max_waiting=10, timeout_s=5, clock=clock)
    queue.try_enter(A)
    clock.now += 3600
    order: list[str] = []

    async def run(client: QueueClient) -> None:
        await queue.enter(client)
        order.append(client.name)
        clock.now += 1
        queue.leave(1.0, client)

    tasks = [asyncio.create_task(run(client)) for client in (A, A, A, B, B, B)]
    await settle()
    queue.leave(3600.0, A)
    await asyncio.gather(*tasks)
    assert sorted(order[:2]) == sorted(order[2:4]) == ["a", "b"], order


async def test_a_key_runs_no_more_than_its_limit_and_does_not_block_others() -> None:
    limited = QueueClient("limited", max_running=2)
    queue = AdmissionQueue(max_running=4, max_waiting=10, timeout_s=5)
    assert queue.try_enter(limited) and queue.try_enter(limited) and not queue.try_enter(limited)
    waiting = asyncio.create_task(queue.enter(limited))
    await settle()
    assert not waiting.done()
    assert queue.try_enter(A) and queue.try_enter(A) and not queue.try_enter(A)
    queue.leave(0.1, A)
    await settle()
    assert not waiting.done() and queue.try_enter(A)
    queue.leave(0.1, limited)
    await waiting


async def test_processes_divide_the_limit_of_a_key() -> None:
    queue = AdmissionQueue(max_running=4, max_waiting=10, timeout_s=5, processes=2)
    limited = QueueClient("limited", max_running=4)
    assert [queue.try_enter(limited) for _ in range(3)] == [True, True, False]


async def test_nobody_can_fill_the_share_of_another() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=10, timeout_s=5)
    queue.try_enter(A)
    many = [asyncio.create_task(queue.enter(A)) for _ in range(10)]
    await settle()
    with pytest.raises(Overloaded):
        await queue.enter(A)
    others = [asyncio.create_task(queue.enter(client)) for client in (B, C)]
    await settle()
    assert [task.done() for task in many] == [False] * 8 + [True] * 2, "A loses its newest ones"
    assert all(isinstance(task.exception(), Overloaded) for task in many[-2:]) and queue.waiting == 10
    queue.leave(0.1, A)
    await settle()
    assert others[0].done() and not others[1].done()
    for task in (*many, *others):
        task.cancel()


async def test_a_full_queue_of_equals_refuses() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=2, timeout_s=5)
    queue.try_enter(A)
    waiting = [asyncio.create_task(queue.enter(client)) for client in (A, B)]
    await settle()
    with pytest.raises(Overloaded):
        await queue.enter(C)
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()


async def test_a_request_takes_as_many_slots_as_it_has_choices() -> None:
    queue = AdmissionQueue(max_running=4, max_waiting=10, timeout_s=5)
    assert queue.try_enter(A, slots=3)
    large = asyncio.create_task(queue.enter(B, slots=2))
    await settle()
    assert not large.done() and not queue.try_enter(C), "a small one does not overtake it"
    queue.leave(0.1, A, slots=3)
    await large
    assert queue.running == 2 and queue.try_enter(C)
    huge = asyncio.create_task(queue.enter(A, slots=16))
    await settle()
    queue.leave(0.1, B, slots=2)
    queue.leave(0.1, C)
    await huge  # more than there are: alone


async def test_the_cache_of_the_engine_is_a_limit_too() -> None:
    queue = AdmissionQueue(max_running=8, max_waiting=10, timeout_s=5)
    queue.resize(8, max_tokens=1000)
    assert queue.reserves_tokens and queue.try_enter(A, tokens=600)
    assert not queue.try_enter(A, tokens=600)
    waiting = asyncio.create_task(queue.enter(A, tokens=600))
    await settle()
    queue.leave(0.1, A, tokens=600)
    await waiting
    assert queue.running == 1


async def test_more_slots_admit_at_once() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=10, timeout_s=5)
    queue.try_enter(A)
    waiting = asyncio.create_task(queue.enter(A))
    await settle()
    queue.resize(2)
    await waiting


async def test_a_held_queue_admits_nobody_but_the_one_that_holds_it() -> None:
    queue = AdmissionQueue(max_running=4, max_waiting=10, timeout_s=5)
    queue.try_enter(A)
    queue.hold()
    assert not queue.try_enter(B)
    waiting, idle = asyncio.create_task(queue.enter(B)), asyncio.create_task(queue.wait_idle())
    await settle()
    assert not idle.done()
    queue.leave(0.1, A)
    await idle
    queue.enter_held(C)
    await settle()
    assert not waiting.done() and queue.running == 1
    queue.leave(0.1, C)
    queue.release()
    await waiting
    assert queue.running == 1


@pytest.mark.parametrize("seed", range(40))
async def test_nothing_is_lost_with_several_clients(seed: int) -> None:
    """Random clients, sizes, cancellations, timeouts and holds; in the end every slot and account is free."""
    chance = random.Random(seed)
    queue = AdmissionQueue(chance.randint(1, 4), chance.randint(0, 6), timeout_s=0.002 if seed % 3 == 0 else 60)
    clients = [QueueClient("a"), QueueClient("b", weight=3), QueueClient("c", max_running=1)]

    async def run() -> None:
        client, slots = chance.choice(clients), chance.randint(1, 3)
        await queue.enter(client, slots)
        try:
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
        finally:
            queue.leave(0.01, client, slots)

    tasks: list[asyncio.Task[None]] = []
    held = False
    for _ in range(300):
        event = chance.random()
        if event < 0.5:
            tasks.append(asyncio.create_task(run()))
        elif event < 0.8 and tasks:
            chance.choice(tasks).cancel()
        elif event < 0.84:
            queue.release() if held else queue.hold()
            held = not held
        else:
            await asyncio.sleep(0.003 if seed % 3 == 0 and event < 0.86 else 0)
    if held:
        queue.release()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(one is None or isinstance(one, (Overloaded, asyncio.CancelledError)) for one in found), found
    assert (queue.running, queue.waiting) == (0, 0)
    assert not any(account.running or account.waiters for account in queue._accounts.values())


async def test_accounts_of_idle_clients_are_few() -> None:
    queue = AdmissionQueue(max_running=1000, max_waiting=10, timeout_s=5)
    clients = [QueueClient(f"c{number}") for number in range(1000)]
    assert all(map(queue.try_enter, clients))
    for client in clients:
        queue.leave(0.1, client)
    assert queue.running == 0 and len(queue._accounts) <= 64
