"""How long one routing decision takes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from enginebay.fleet.routing.replica_router import ReplicaRouter, hash_blocks

PROMPT_TOKENS = 2048
_DECISIONS = 4000
_PROMPTS = 500


def measure_decisions(replicas: int, rounds: int) -> dict[str, list[float]]:
    """Return microseconds of processor time per decision, by what decides, one value a round.

    Each decision also counts a request that begins and one that ends. Hashing the prompt is measured apart: it is the
    same for any number of replicas.
    """
    router = ReplicaRouter()
    router.set_replicas({f"unix:/run/{number}/s": f"toy#{number}" for number in range(replicas)}, {})
    dice = random.Random(1)
    system = tuple(dice.randrange(32000) for _ in range(PROMPT_TOKENS // 2))
    prompts = [system + tuple(dice.randrange(32000) for _ in range(PROMPT_TOKENS // 2)) for _ in range(_PROMPTS)]
    hashed = [hash_blocks(prompt) for prompt in prompts]
    short = tuple(range(100))
    running = [router.choose("", prompt).replica for prompt in prompts]
    for replica in running:
        router.loads.add(replica, 1)
    ways: dict[str, Callable[[int], str]] = {
        "session": lambda number: router.choose(f"session {number % 997}").replica,
        "prefix": lambda number: router.choose_by_blocks(hashed[number % _PROMPTS]).replica,
        "least load": lambda number: router.choose("", short).replica,
    }
    return {name: [_time_decisions(router, running, choose) for _ in range(rounds)] for name, choose in ways.items()}


def _time_decisions(router: ReplicaRouter, running: list[str], choose: Callable[[int], str]) -> float:
    """Decide while as many requests end as begin."""
    started = time.process_time()
    for number in range(_DECISIONS):
        replica = choose(number)
        router.loads.add(replica, 1)
        ended = number % len(running)
        router.loads.add(running[ended], -1)
        running[ended] = replica
    return (time.process_time() - started) / _DECISIONS * 1e6


def measure_hashing(rounds: int) -> list[float]:
    """Return microseconds to hash 1,024 prompt tokens, which is part of each decision by prefix."""
    ids = tuple(random.Random(2).randrange(32000) for _ in range(16384))
    values = []
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(50):
            hash_blocks(ids)
        values.append((time.process_time() - started) / 50 / 16 * 1e6)
    return values
