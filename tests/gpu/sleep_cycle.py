"""Puts a worker to sleep and wakes it as the fleet does, and measures the effect."""

from __future__ import annotations

import time
from dataclasses import dataclass

from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.meters.devices.proc_files import list_process_tree
from tests.contract.engine_profiles import PROFILES
from tests.contract.worker_requests import ask_greedy
from tests.gpu.gpu_memory import read_held_bytes

_PROFILE = PROFILES["vllm"]


@dataclass(frozen=True)
class SleepCycle:
    awake_bytes: int
    asleep_bytes: int
    sleep_s: float
    wake_s: float
    same: bool  # the outputs before and after are equal

    @property
    def freed_bytes(self) -> int:
        return self.awake_bytes - self.asleep_bytes


async def sleep_and_wake(worker: ModelWorker, level: int) -> SleepCycle:
    pids = list_process_tree(worker.process.pid)
    before = await _generate_answers(worker)
    awake = read_held_bytes(pids)
    assert await worker.client.drain(10.0) == 0
    started = time.monotonic()
    await worker.client.sleep(level)
    slept = time.monotonic()
    asleep = read_held_bytes(pids)
    woke = time.monotonic()
    await worker.client.wake()
    done = time.monotonic()
    return SleepCycle(awake, asleep, slept - started, done - woke, await _generate_answers(worker) == before)


async def _generate_answers(worker: ModelWorker) -> list[list[int]]:
    return [(await ask_greedy(worker, prompt, max_tokens=12)).ids for prompt in (_PROFILE.certain, _PROFILE.more[1])]
