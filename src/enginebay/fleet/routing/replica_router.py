"""Chooses the replica that serves a request. Pure, apart from the table it keeps.

    a session key (header or `prompt_cache_key`)   the same replica each time, in every server process
    a prompt whose first blocks were seen before   the replica that has the longest part of it cached
    anything else                                  the replica with the least load

A replica above `MAX_LOAD_FACTOR` times the mean load is passed over, however well it fits.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from typing import Literal, TypeAlias

BLOCK_TOKENS = 256
MAX_LOAD_FACTOR = 1.25
_MAX_BLOCKS = 256  # of a prompt: the rest of a longer one does not matter
_MAX_KNOWN_BLOCKS = 1 << 16
_POINTS_PER_REPLICA = 16  # on the hash ring
_MAX_RING_STEPS = 64  # past overloaded replicas

RouteReason: TypeAlias = Literal["session", "prefix", "load"]


@dataclass(frozen=True, slots=True)
class ReplicaChoice:
    replica: str
    reason: RouteReason
    known_blocks: int = 0  # of the prompt that this replica has seen


class LoadTable:
    """Requests in flight by replica. Finds the least loaded one without looking at all of them."""

    def __init__(self) -> None:
        self._loads: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []  # may hold outdated loads
        self._order = count()  # spreads requests over replicas with equal loads
        self.total = 0

    def __contains__(self, replica: str) -> bool:
        return replica in self._loads

    def __len__(self) -> int:
        return len(self._loads)

    def __getitem__(self, replica: str) -> int:
        return self._loads[replica]

    @property
    def replicas(self) -> Iterable[str]:
        return self._loads.keys()

    def set(self, replica: str, load: int) -> None:
        before = self._loads.get(replica)
        if before == load:
            return
        self.total += load - (before or 0)
        self._loads[replica] = load
        heapq.heappush(self._heap, (load, next(self._order), replica))
        if len(self._heap) > 64 + 8 * len(self._loads):
            self._heap = [(load, next(self._order), name) for name, load in self._loads.items()]
            heapq.heapify(self._heap)

    def add(self, replica: str, change: int) -> None:
        if replica in self._loads:
            self.set(replica, max(0, self._loads[replica] + change))

    def remove(self, replica: str) -> None:
        self.total -= self._loads.pop(replica, 0)

    def find_least(self) -> str:
        """Return the replica with the least load; the one that waited longest among equals."""
        while True:
            load, _, replica = self._heap[0]
            if self._loads.get(replica) == load:
                return replica
            heapq.heappop(self._heap)

    def is_overloaded(self, replica: str) -> bool:
        """Return whether one more request would take it above the bound."""
        return self._loads[replica] + 1 > MAX_LOAD_FACTOR * (self.total + 1) / len(self._loads) + 1


class ReplicaRouter:
    """Routes the requests of one model in one server process."""

    def __init__(self) -> None:
        self.loads = LoadTable()
        self._ring: list[tuple[int, str]] = []
        self._holders: OrderedDict[bytes, str] = OrderedDict()  # the replica that saw a block last, oldest first

    def set_replicas(self, replicas: Sequence[str]) -> None:
        """Update the replicas. Known blocks of those that left are forgotten when they are next looked up."""
        for name in set(self.loads.replicas) - set(replicas):
            self.loads.remove(name)
        for name in replicas:
            if name not in self.loads:
                self.loads.set(name, 0)
        points = ((_hash_point(f"{name}/{number}"), name) for name in replicas for number in range(_POINTS_PER_REPLICA))
        self._ring = sorted(points)

    def choose(self, session: str = "", token_ids: Sequence[int] = (), adapter: str = "") -> ReplicaChoice:
        """Choose a replica. Raises `IndexError` without replicas."""
        if session:
            return ReplicaChoice(self._find_on_ring(f"{adapter}/{session}"), "session")
        blocks = hash_blocks(token_ids, adapter)
        choice = self._find_by_prefix(blocks) or ReplicaChoice(self.loads.find_least(), "load")
        self._remember(blocks, choice.replica)
        return choice

    def _find_on_ring(self, key: str) -> str:
        start = bisect_left(self._ring, (_hash_point(key), ""))
        for step in range(min(_MAX_RING_STEPS, len(self._ring))):
            replica = self._ring[(start + step) % len(self._ring)][1]
            if not self.loads.is_overloaded(replica):
                return replica
        return self.loads.find_least()

    def _find_by_prefix(self, blocks: Sequence[bytes]) -> ReplicaChoice | None:
        if self.loads.total < len(self.loads) and not blocks:
            return None
        for number in range(len(blocks), 0, -1):
            replica = self._holders.get(blocks[number - 1])
            if replica is not None and replica in self.loads and not self.loads.is_overloaded(replica):
                return ReplicaChoice(replica, "prefix", number)
        return None

    def _remember(self, blocks: Sequence[bytes], replica: str) -> None:
        for block in blocks:
            self._holders[block] = replica
            self._holders.move_to_end(block)
        while len(self._holders) > _MAX_KNOWN_BLOCKS:
            self._holders.popitem(last=False)


def hash_blocks(token_ids: Sequence[int], adapter: str = "") -> list[bytes]:
    """Return one hash per full block of the prompt, each over all blocks up to it."""
    hashes: list[bytes] = []
    running = blake2b(adapter.encode(), digest_size=16)
    for start in range(0, min(len(token_ids), _MAX_BLOCKS * BLOCK_TOKENS) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        running.update(repr(tuple(token_ids[start : start + BLOCK_TOKENS])).encode())
        hashes.append(running.digest())
    return hashes


def _hash_point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
