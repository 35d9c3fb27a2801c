"""The gate: order, bounds, and that no place is ever lost, whatever becomes of those who wait."""

from __future__ import annotations

import asyncio
import random

import pytest

from enginebay.errors import Overloaded
from enginebay.server.sessions.admission_queue import AdmissionQueue


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_places_are_taken_at_once_while_there_are_some() -> None:
    gate = AdmissionQueue(max_running=2, max_waiting=0, timeout_s=1)
    assert gate.try_enter() and gate.try_enter() and not gate.try_enter()
    assert gate.running == 2 and gate.is_full
    gate.leave(0.1)
    assert gate.running == 1 and not gate.is_full and gate.try_enter()


async def test_first_come_first_served() -> None:
    gate = AdmissionQueue(max_running=1, max_waiting=10, timeout_s=5)
    await gate.enter()
    order: list[int] = []

    async def one(number: int) -> None:
        await gate.enter()
        order.append(number)
        gate.leave(0.1)

    waiting = [asyncio.create_task(one(number)) for number in range(10)]
    await settle()
    assert gate.waiting == 10 and not gate.try_enter()
    gate.leave(0.1)
    assert not gate.try_enter()  # it was handed to the first in the queue, so nobody can jump it
    await asyncio.gather(*waiting)
    assert order == list(range(10)) and gate.running == 0 and gate.waiting == 0


async def test_the_queue_has_an_end() -> None:
    gate = AdmissionQueue(max_running=1, max_waiting=1, timeout_s=5)
    await gate.enter()
    waiting = asyncio.create_task(gate.enter())
    await settle()
    assert gate.is_full
    with pytest.raises(Overloaded) as refused:
        await gate.enter()
    assert refused.value.retry_after_s > 0
    gate.leave(0.1)
    await waiting
    assert gate.running == 1 and gate.waiting == 0


async def test_a_queue_of_none_refuses_at_once() -> None:
    gate = AdmissionQueue(max_running=1, max_waiting=0, timeout_s=5)
    await gate.enter()
    with pytest.raises(Overloaded):
        await gate.enter()


async def test_a_wait_has_an_end() -> None:
    gate = AdmissionQueue(max_running=1, max_waiting=1, timeout_s=0.02)
    await gate.enter()
    with pytest.raises(Overloaded, match=r"waited 0\.02 s"):
        await gate.enter()
    assert gate.waiting == 0 and gate.running == 1
    gate.leave(0.1)
    assert gate.running == 0


async def test_one_who_leaves_the_queue_leaves_no_gap() -> None:
    gate = AdmissionQueue(max_running=1, max_waiting=3, timeout_s=5)
    await gate.enter()
    waiting = [asyncio.create_task(gate.enter()) for _ in range(3)]
    await settle()
    waiting[0].cancel()
    await settle()
    assert gate.waiting == 2
    gate.leave(0.1)
    await settle()
    assert waiting[1].done() and not waiting[2].done() and gate.running == 1
    waiting[2].cancel()


async def test_a_place_that_comes_as_one_gives_up_goes_to_the_next() -> None:
    gate = AdmissionQueue(max_running=1, max_waiting=3, timeout_s=5)
    await gate.enter()
    first, second = asyncio.create_task(gate.enter()), asyncio.create_task(gate.enter())
    await settle()
    gate.leave(0.1)
    first.cancel()  # in the same turn of the loop: the place is its own already, but it will never know
    await settle()
    assert first.cancelled() and second.done() and not second.cancelled()
    assert gate.running == 1 and gate.waiting == 0
    gate.leave(0.1)
    assert gate.running == 0


async def test_when_to_come_back_follows_from_how_long_requests_take() -> None:
    slow, fast = (
        AdmissionQueue(max_running=2, max_waiting=10, timeout_s=5),
        AdmissionQueue(max_running=2, max_waiting=10, timeout_s=5),
    )
    for _ in range(200):
        for gate, took_s in ((slow, 10.0), (fast, 0.01)):
            gate.try_enter()
            gate.leave(took_s)
    assert slow.estimate_retry_after_s() > 4 and fast.estimate_retry_after_s() < 0.1


@pytest.mark.parametrize("seed", range(40))
async def test_no_place_is_lost_in_any_order_of_events(seed: int) -> None:
    """Entering, leaving, giving up and running out of time, all at random; in the end every place is free."""
    chance = random.Random(seed)
    running, queue = chance.randint(1, 4), chance.randint(0, 6)
    gate = AdmissionQueue(running, queue, timeout_s=0.002 if seed % 3 == 0 else 60)
    inside = 0
    most = 0

    async def one() -> None:
        nonlocal inside, most
        await gate.enter()
        inside += 1
        most = max(most, inside)
        try:
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
        finally:
            inside -= 1
            gate.leave(0.01)

    tasks: list[asyncio.Task[None]] = []
    for _ in range(300):
        event = chance.random()
        if event < 0.5:
            tasks.append(asyncio.create_task(one()))
        elif event < 0.8 and tasks:
            chance.choice(tasks).cancel()
        elif seed % 3 == 0 and event < 0.82:
            await asyncio.sleep(0.003)
        else:
            await asyncio.sleep(0)
        assert gate.running <= running and gate.waiting <= queue and inside <= running
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(one is None or isinstance(one, (Overloaded, asyncio.CancelledError)) for one in found), found
    assert (gate.running, gate.waiting, inside) == (0, 0, 0)
    assert most <= running and not gate.is_full
    assert all(gate.try_enter() for _ in range(running)) and not gate.try_enter()
