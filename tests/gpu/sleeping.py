"""Putting a worker to sleep and waking it, as the fleet does, told by effect."""

from __future__ import annotations

import time
from dataclasses import dataclass

from enginebay.fleet.model_worker import ModelWorker
from enginebay.worker.memory import family
from tests.contract.asking import greedy
from tests.contract.profiles import PROFILES
from tests.gpu.gpu_memory import held_bytes

_PROFILE = PROFILES["vllm"]


@dataclass(frozen=True)
class Slept:
    awake_bytes: int
    asleep_bytes: int
    sleep_s: float
    wake_s: float
    same: bool  # answers before and after

    @property
    def freed_bytes(self) -> int:
        return self.awake_bytes - self.asleep_bytes


async def sleep_and_wake(worker: ModelWorker, level: int) -> Slept:
    pids = family(worker.process.pid)
    before = await _answers(worker)
    awake = held_bytes(pids)
    assert await worker.client.drain(10.0) == 0
    started = time.monotonic()
    await worker.client.sleep(level)
    slept = time.monotonic()
    asleep = held_bytes(pids)
    woke = time.monotonic()
    await worker.client.wake()
    done = time.monotonic()
    return Slept(awake, asleep, slept - started, done - woke, await _answers(worker) == before)


async def _answers(worker: ModelWorker) -> list[list[int]]:
    return [(await greedy(worker, prompt, max_tokens=12)).ids for prompt in (_PROFILE.certain, _PROFILE.more[1])]
