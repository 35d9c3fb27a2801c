from __future__ import annotations

import asyncio

import pytest

from enginebay.errors import Overloaded
from enginebay.server.supervisor.trial_coordinator import TrialCoordinator


class Process:
    """A server process that becomes idle on demand."""

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self.held: set[str] = set()
        self.releases = 0

    async def hold_admission(self, variant: str, address: str = "") -> None:
        self.held.add(variant)
        await self.idle.wait()

    def release_admission(self, variant: str) -> None:
        self.held.discard(variant)
        self.releases += 1


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_trial_holds_all_processes_until_it_ends() -> None:
    processes = [Process(), Process()]
    processes[1].idle.clear()
    trials = TrialCoordinator(lambda: processes)
    begun = asyncio.create_task(trials.begin("m", "1:1"))
    await settle()
    assert not begun.done() and all(process.held == {"m"} for process in processes)
    processes[1].idle.set()
    await begun
    trials.end("m", "1:1")
    assert not any(process.held for process in processes)
    await trials.begin("m", "1:2")


async def test_trials_follow_each_other_and_nobody_is_admitted_in_between() -> None:
    process = Process()
    trials = TrialCoordinator(lambda: [process])
    await trials.begin("m", "1:1")
    second, third = (asyncio.create_task(trials.begin("m", name)) for name in ("2:1", "1:2"))
    await settle()
    assert not second.done() and not third.done()
    trials.end("m", "1:1")
    await second
    assert not third.done() and process.releases == 0
    await trials.begin("other", "3:1")
    trials.end("m", "2:1")
    await third
    trials.end("m", "1:2")
    assert process.releases == 1 and process.held == {"other"}


async def test_trials_do_not_keep_others_waiting_for_long() -> None:
    process, now = Process(), [0.0]
    trials = TrialCoordinator(lambda: [process], clock=lambda: now[0])
    await trials.begin("m", "1:1")
    waiting = asyncio.create_task(trials.begin("m", "1:2"))
    await settle()
    now[0] = 11.0
    trials.end("m", "1:1")
    with pytest.raises(Overloaded):
        await waiting
    assert process.releases == 1
    with pytest.raises(Overloaded):
        await trials.begin("m", "1:3")
    await trials.begin("m", "1:4", urgent=True)
    trials.end("m", "1:4")
    now[0] = 40.0
    await trials.begin("m", "1:5")


async def test_trials_one_after_another_do_not_either() -> None:
    process, now = Process(), [0.0]
    trials = TrialCoordinator(lambda: [process], clock=lambda: now[0])
    for number in range(3):
        await trials.begin("m", f"1:{number}")
        now[0] += 4.0
        trials.end("m", f"1:{number}")
        now[0] += 1.0
    with pytest.raises(Overloaded):
        await trials.begin("m", "1:4")
    await trials.begin("other", "1:5")
    now[0] = 33.0
    await trials.begin("m", "1:6")


async def test_an_urgent_trial_keeps_its_place() -> None:
    process, now = Process(), [0.0]
    trials = TrialCoordinator(lambda: [process], clock=lambda: now[0])
    await trials.begin("m", "1:1")
    usual = asyncio.create_task(trials.begin("m", "1:2"))
    urgent = asyncio.create_task(trials.begin("m", "1:3", urgent=True))
    await settle()
    now[0] = 11.0
    trials.end("m", "1:1")
    await urgent
    with pytest.raises(Overloaded):
        await usual
    assert process.releases == 0


async def test_a_cancelled_trial_passes_its_turn_on() -> None:
    process = Process()
    trials = TrialCoordinator(lambda: [process])
    await trials.begin("m", "1:1")
    waiting = {name: asyncio.create_task(trials.begin("m", name)) for name in ("2:1", "2:2", "2:3")}
    await settle()
    waiting["2:1"].cancel()
    trials.end("m", "2:1")
    trials.end("m", "1:1")
    waiting["2:2"].cancel()  # just as its turn comes
    trials.end("m", "2:2")
    await waiting["2:3"]
    trials.end("m", "2:3")
    assert not process.held


async def test_trials_of_a_process_that_exits_end() -> None:
    process = Process()
    trials = TrialCoordinator(lambda: [process])
    await trials.begin("m", "11:1")
    tasks = [asyncio.create_task(trials.begin("m", name)) for name in ("11:2", "1:1")]
    await settle()
    trials.end_all(11)
    await tasks[1]
    trials.end("m", "1:1")
    assert not process.held
    tasks[0].cancel()
