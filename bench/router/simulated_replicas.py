"""Replicas with prefix caches, simulated event by event; the router is the real one.

A replica reads prompts one after another, without the part that is in its cache, and then generates for all of its
requests at once. Its cache holds blocks of tokens and forgets those that were used longest ago.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from enginebay.fleet.routing.replica_router import MAX_LOAD_FACTOR, ReplicaRouter

CACHE_BLOCK = 64  # tokens
_PREFILL_TOKENS_PER_S = 8000.0
_TOKEN_S = 0.015


@dataclass(frozen=True, slots=True)
class TraceShape:
    """Conversations in groups: an agent's long system prompt, then turns that add to the prompt."""

    conversations: int
    groups: int
    turns: int
    system_tokens: int = 2048
    user_tokens: int = 192
    output_tokens: int = 160
    think_s: float = 8.0


@dataclass(slots=True)
class _Conversation:
    number: int
    group: int
    token_ids: tuple[int, ...]
    turns_left: int


@dataclass(slots=True)
class _SimulatedReplica:
    capacity_blocks: int
    cache: OrderedDict[tuple[int, int], None] = field(default_factory=OrderedDict)
    free_at: float = 0.0  # when it has read all prompts

    def read_prompt(self, keys: Sequence[tuple[int, int]], tokens: int, now: float) -> tuple[int, float]:
        """Return the cached tokens, and when the prompt has been read."""
        known = 0
        while known < len(keys) and keys[known] in self.cache:
            known += 1
        for key in keys:
            self.cache[key] = None
            self.cache.move_to_end(key)
        while len(self.cache) > self.capacity_blocks:
            self.cache.popitem(last=False)
        cached = known * CACHE_BLOCK
        self.free_at = max(now, self.free_at) + (tokens - cached) / _PREFILL_TOKENS_PER_S
        return cached, self.free_at


@dataclass(slots=True)
class SimulationResult:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttfts: list[float] = field(default_factory=list)
    imbalances: list[float] = field(default_factory=list)  # the busiest replica over the mean, at every 16th request
    excesses: list[float] = field(default_factory=list)  # the busiest over the bound

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def mean_ttft_s(self) -> float:
        return sum(self.ttfts) / len(self.ttfts)

    @property
    def p95_ttft_s(self) -> float:
        return sorted(self.ttfts)[int(0.95 * len(self.ttfts))]

    @property
    def mean_imbalance(self) -> float:
        return sum(self.imbalances) / len(self.imbalances)

    @property
    def mean_excess(self) -> float:
        return sum(self.excesses) / len(self.excesses)


Policy = Callable[[ReplicaRouter, _Conversation, random.Random], str]


def choose_by_prefix(router: ReplicaRouter, conversation: _Conversation, _: random.Random) -> str:
    return router.choose("", conversation.token_ids).replica


def choose_by_session(router: ReplicaRouter, conversation: _Conversation, _: random.Random) -> str:
    return router.choose(f"session {conversation.number}").replica


def choose_at_random(router: ReplicaRouter, _: _Conversation, dice: random.Random) -> str:
    return str(dice.randrange(len(router.loads)))


def choose_least_loaded(router: ReplicaRouter, _: _Conversation, dice: random.Random) -> str:
    return router.loads.find_least()


POLICIES: dict[str, Policy] = {
    "by prefix": choose_by_prefix,
    "by session": choose_by_session,
    "at random": choose_at_random,
    "by least load": choose_least_loaded,
}


def simulate(policy: Policy, replicas: int, shape: TraceShape, cache_tokens: int, seed: int) -> SimulationResult:
    """Run all conversations. Only the policy differs between runs with the same seed."""
    dice, choices = random.Random(seed), random.Random(seed + 1)
    router = ReplicaRouter()
    router.set_replicas({str(number): f"toy#{number}" for number in range(replicas)})
    fleet = [_SimulatedReplica(cache_tokens // CACHE_BLOCK) for _ in range(replicas)]
    systems = [_draw_tokens(dice, shape.system_tokens) for _ in range(shape.groups)]
    result = SimulationResult()
    events: list[tuple[float, int, _Conversation | str]] = []  # a conversation asks, or a replica ends a request
    for number in range(shape.conversations):
        group = dice.randrange(shape.groups)
        conversation = _Conversation(number, group, systems[group] + _draw_user(dice, shape), shape.turns)
        heapq.heappush(events, (dice.uniform(0, 2 * shape.think_s), number, conversation))
    order = shape.conversations
    while events:
        now, _, event = heapq.heappop(events)
        if isinstance(event, str):
            router.loads.add(event, -1)
            continue
        chosen = policy(router, event, choices)
        router.loads.add(chosen, 1)
        keys = _list_cache_keys(event, shape)
        cached, first_at = fleet[int(chosen)].read_prompt(keys, len(event.token_ids), now)
        ended_at = first_at + shape.output_tokens * _TOKEN_S
        _record(result, router, event, cached, first_at - now)
        order += 1
        heapq.heappush(events, (ended_at, order, chosen))
        event.turns_left -= 1
        if event.turns_left:
            event.token_ids += _draw_tokens(dice, shape.output_tokens) + _draw_user(dice, shape)
            order += 1
            heapq.heappush(events, (ended_at + dice.expovariate(1 / shape.think_s), order, event))
    return result


def _record(
    result: SimulationResult, router: ReplicaRouter, conversation: _Conversation, cached: int, ttft_s: float
) -> None:
    result.prompt_tokens += len(conversation.token_ids)
    result.cached_tokens += cached
    result.ttfts.append(ttft_s)
    loads = router.loads
    if loads.total >= len(loads) and len(result.ttfts) % 16 == 0:
        busiest = max(loads[name] for name in loads.replicas)
        result.imbalances.append(busiest * len(loads) / loads.total)
        result.excesses.append(busiest / math.ceil(MAX_LOAD_FACTOR * loads.total / len(loads)))


def _draw_tokens(dice: random.Random, count: int) -> tuple[int, ...]:
    return tuple(dice.randbytes(count))


def _draw_user(dice: random.Random, shape: TraceShape) -> tuple[int, ...]:
    return _draw_tokens(dice, max(16, int(dice.expovariate(1 / shape.user_tokens))))


def _list_cache_keys(conversation: _Conversation, shape: TraceShape) -> list[tuple[int, int]]:
    """Return the key of each full block: of the system prompt those of the group, else those of the conversation."""
    shared = shape.system_tokens // CACHE_BLOCK
    return [
        (-1 - conversation.group if block < shared else conversation.number, block)
        for block in range(len(conversation.token_ids) // CACHE_BLOCK)
    ]
