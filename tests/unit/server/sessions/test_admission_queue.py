"""Admission queue: order, limits, and that no slot is ever lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from enginebay.errors import Overloaded
from enginebay.server.sessions.admission_queue import ANYONE, AdmissionQueue


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_free_slots_are_taken_at_once() -> None:
    queue = AdmissionQueue(max_running=2, max_waiting=0, timeout_s=1)
    assert queue.try_enter() and queue.try_enter() and not queue.try_enter()
    assert queue.running == 2 and queue.is_full
    queue.leave(0.1)
    assert queue.running == 1 and not queue.is_full and queue.try_enter()


async def test_first_come_first_served() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=10, timeout_s=5)
    await queue.enter()
    order: list[int] = []

    async def one(number: int) -> None:
        await queue.enter()
        order.append(number)
        queue.leave(0.1)

    waiting = [asyncio.create_task(one(number)) for number in range(10)]
    await settle()
    assert queue.waiting == 10 and not queue.try_enter()
    queue.leave(0.1)
    assert not queue.try_enter()  # the slot went to the first waiter, so none can jump the queue
    await asyncio.gather(*waiting)
    assert order == list(range(10)) and queue.running == 0 and queue.waiting == 0


async def test_a_full_queue_refuses() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=1, timeout_s=5)
    await queue.enter()
    waiting = asyncio.create_task(queue.enter())
    await settle()
    assert queue.is_full
    with pytest.raises(Overloaded) as refused:
        await queue.enter()
    assert refused.value.retry_after_s > 0
    queue.leave(0.1)
    await waiting
    assert queue.running == 1 and queue.waiting == 0


async def test_a_queue_of_size_0_refuses_at_once() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=0, timeout_s=5)
    await queue.enter()
    with pytest.raises(Overloaded):
        await queue.enter()


async def test_a_wait_times_out() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=1, timeout_s=0.02)
    await queue.enter()
    with pytest.raises(Overloaded, match=r"timed out after 0\.02 s"):
        await queue.enter()
    assert queue.waiting == 0 and queue.running == 1
    queue.leave(0.1)
    assert queue.running == 0


async def test_a_cancelled_waiter_leaves_no_gap() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=3, timeout_s=5)
    await queue.enter()
    waiting = [asyncio.create_task(queue.enter()) for _ in range(3)]
    await settle()
    waiting[0].cancel()
    await settle()
    assert queue.waiting == 2
    queue.leave(0.1)
    await settle()
    assert waiting[1].done() and not waiting[2].done() and queue.running == 1
    waiting[2].cancel()


async def test_a_slot_granted_to_a_cancelled_waiter_goes_to_the_next() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=3, timeout_s=5)
    await queue.enter()
    first, second = asyncio.create_task(queue.enter()), asyncio.create_task(queue.enter())
    await settle()
    queue.leave(0.1)
    first.cancel()  # in the same loop iteration that granted it the slot
    await settle()
    assert first.cancelled() and second.done() and not second.cancelled()
    assert queue.running == 1 and queue.waiting == 0
    queue.leave(0.1)
    assert queue.running == 0


async def test_retry_after_follows_from_request_durations() -> None:
    slow, fast = (
        AdmissionQueue(max_running=2, max_waiting=10, timeout_s=5),
        AdmissionQueue(max_running=2, max_waiting=10, timeout_s=5),
    )
    for _ in range(200):
        for queue, took_s in ((slow, 10.0), (fast, 0.01)):
            queue.try_enter()
            queue.leave(took_s)
    assert slow.estimate_retry_after_s() > 4 and fast.estimate_retry_after_s() < 0.1


@pytest.mark.parametrize("seed", range(40))
async def test_no_slot_is_lost_in_any_order_of_events(seed: int) -> None:
    """Random enters, leaves, cancellations and timeouts; in the end every slot is free."""
    chance = random.Random(seed)
    running, waiting = chance.randint(1, 4), chance.randint(0, 6)
    queue = AdmissionQueue(running, waiting, timeout_s=0.002 if seed % 3 == 0 else 60)
    inside = 0
    most = 0

    async def one() -> None:
        nonlocal inside, most
        await queue.enter()
        inside += 1
        most = max(most, inside)
        try:
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
        finally:
            inside -= 1
            queue.leave(0.01)

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
        assert queue.running <= running and queue.waiting <= waiting and inside <= running
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(one is None or isinstance(one, (Overloaded, asyncio.CancelledError)) for one in found), found
    assert (queue.running, queue.waiting, inside) == (0, 0, 0)
    assert most <= running and not queue.is_full
    assert all(queue.try_enter() for _ in range(running)) and not queue.try_enter()


async def test_who_had_slots_on_a_dead_worker_does_not_wait_in_a_full_queue() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=0, timeout_s=1)
    await queue.enter()
    await queue.enter_again(ANYONE)
    assert queue.running == 2
    queue.leave(0.1)
    assert not queue.try_enter(), "the other one counts"


async def test_who_returns_waits_while_a_suspect_runs_alone() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=5, timeout_s=5)
    queue.hold()
    queue.enter_held(ANYONE)
    waiting = asyncio.create_task(queue.enter())
    returning, leaving = asyncio.create_task(queue.enter_again(ANYONE)), asyncio.create_task(queue.enter_again(ANYONE))
    await settle()
    assert queue.running == 1 and not returning.done()
    leaving.cancel()
    await settle()
    queue.leave(0.1)
    queue.release()
    await settle()
    assert returning.done() and not waiting.done(), "it had its turn before"
    queue.leave(0.1)
    await waiting
    queue.leave(0.1)
    assert queue.running == 0


async def test_who_is_cancelled_just_as_it_returns_frees_its_slots() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=0, timeout_s=5)
    queue.hold()
    returning = asyncio.create_task(queue.enter_again(ANYONE))
    await settle()
    queue.release()
    returning.cancel()
    await settle()
    assert queue.running == 0
