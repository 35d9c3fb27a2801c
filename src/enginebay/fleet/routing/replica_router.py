"""Chooses the replica that serves a request. Pure, apart from the tables it keeps.

    a session key (header or `prompt_cache_key`)   the same replica each time, in every server process
    a prompt whose first blocks were seen before   a replica that has the longest part of it cached
    an adapter that was used before                a replica that used it
    anything else                                  the replica with the least load

The load is bounded: no replica gets more than `MAX_LOAD_FACTOR` times the mean, however well it fits. So an idle replica
goes before one that fits but is busy, while fewer requests run than there are replicas.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import count
from math import ceil
from typing import Literal, NamedTuple, TypeAlias

BLOCK_TOKENS = 256
MAX_LOAD_FACTOR = 1.25
_MAX_BLOCKS = 256  # of a prompt: the rest of a longer one does not matter
_MAX_KNOWN_BLOCKS = 1 << 16
_MAX_HOLDERS = 8  # of a block: more make no difference
_POINTS_PER_REPLICA = 16  # on the hash ring
_MAX_RING_STEPS = 64  # past overloaded replicas

RouteReason: TypeAlias = Literal["session", "prefix", "adapter", "load"]


class ReplicaChoice(NamedTuple):
    replica: str
    reason: RouteReason
    known_tokens: int = 0  # of the prompt that this replica has seen


class LoadTable:
    """Requests in flight by replica. Finds the least loaded one without looking at all of them."""

    def __init__(self) -> None:
        self._loads: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []  # load, number of the change, replica; may hold outdated ones
        self._changes: dict[str, int] = {}  # the number of a replica's last change
        self._numbers = count()
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
        number = self._changes[replica] = next(self._numbers)
        heapq.heappush(self._heap, (load, number, replica))
        if len(self._heap) > 64 + 8 * len(self._loads):
            self._heap = [(load, self._changes[name], name) for name, load in self._loads.items()]
            heapq.heapify(self._heap)

    def add(self, replica: str, change: int) -> None:
        if replica in self._loads:
            self.set(replica, max(0, self._loads[replica] + change))

    def remove(self, replica: str) -> None:
        self.total -= self._loads.pop(replica, 0)
        self._changes.pop(replica, None)

    def find_least(self) -> str:
        """Return the replica with the least load; the one that waited longest among equals."""
        while True:
            _, number, replica = self._heap[0]
            if self._changes.get(replica) == number:
                return replica
            heapq.heappop(self._heap)

    def find_least_of(self, replicas: Iterable[str]) -> str | None:
        """Return the least loaded of these, or None if all have left."""
        loads, best, least = self._loads, None, -1
        for replica in replicas:
            load = loads.get(replica, -1)
            if load >= 0 and (load < least or best is None):
                best, least = replica, load
        return best

    def compute_limit(self) -> int:
        """Return the most that a replica may have after the next request: only idle ones get it while some are."""
        replicas = len(self._loads)
        return 1 if self.total < replicas else ceil(MAX_LOAD_FACTOR * (self.total + 1) / replicas)


class ReplicaRouter:
    """Routes the requests of one model in one server process."""

    def __init__(self) -> None:
        self.loads = LoadTable()
        self._capacities: dict[str, int] = {}
        self._ring: list[int] = []
        self._ring_replicas: list[str] = []
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()  # replicas by block, least recently used first

    def set_replicas(self, replicas: Mapping[str, str], capacities: Mapping[str, int] | None = None) -> None:
        """Update the replicas: the ring name of each. A name that stays keeps its sessions.

        `capacities`: the requests that each runs at once; 0 or absent: unknown.
        """
        self._capacities = dict(capacities or {})
        for replica in set(self.loads.replicas) - set(replicas):
            self.loads.remove(replica)
        for replica in replicas:
            if replica not in self.loads:
                self.loads.set(replica, 0)
        points = sorted(
            (_hash_point(f"{name}/{number}"), replica)
            for replica, name in replicas.items()
            for number in range(_POINTS_PER_REPLICA)
        )
        self._ring = [point for point, _ in points]
        self._ring_replicas = [replica for _, replica in points]

    def choose(self, session: str = "", token_ids: Sequence[int] = (), adapter: str = "") -> ReplicaChoice:
        """Choose one of the replicas, of which there must be some."""
        if session:
            return ReplicaChoice(self._find_on_ring(f"{adapter}/{session}", self.loads.compute_limit()), "session")
        return self.choose_by_blocks(hash_blocks(token_ids, adapter), bool(adapter))

    def choose_by_blocks(self, blocks: Sequence[int], has_adapter: bool = False) -> ReplicaChoice:
        """Choose one of the replicas for a prompt, by what `hash_blocks` returned for it."""
        choice = self._find_by_prefix(blocks, has_adapter, self.loads.compute_limit())
        if choice is None:
            choice = ReplicaChoice(self.loads.find_least(), "load")
        self._remember(blocks, choice.replica)
        return choice

    def _has_room(self, replica: str, limit: int) -> bool:
        """Return whether the replica may get one more request."""
        load = self.loads[replica]
        return load < limit and load < (self._capacities.get(replica) or load + 1)

    def _find_on_ring(self, key: str, limit: int) -> str:
        size = len(self._ring)
        start = bisect_left(self._ring, _hash_point(key))
        for step in range(min(_MAX_RING_STEPS, size)):
            replica = self._ring_replicas[(start + step) % size]
            if self._has_room(replica, limit):
                return replica
        return self.loads.find_least()

    def _find_by_prefix(self, blocks: Sequence[int], has_adapter: bool, limit: int) -> ReplicaChoice | None:
        """Return the least loaded replica with room that has seen the most blocks, or None."""
        holders, before = self._holders, None
        for number in range(len(blocks), 0, -1):
            known = holders.get(blocks[number - 1])
            if known is None or known is before:
                continue  # unknown, or held by those that the longer part was
            before = known
            replica = self.loads.find_least_of(known)
            if replica is not None and self._has_room(replica, limit):
                tokens = (number - has_adapter) * BLOCK_TOKENS
                return ReplicaChoice(replica, "prefix" if tokens else "adapter", tokens)
        return None

    def _remember(self, blocks: Sequence[int], replica: str) -> None:
        holders, single = self._holders, (replica,)
        before: tuple[str, ...] | None = None
        after: tuple[str, ...] = single
        for block in blocks:
            known = holders.get(block)
            if known is None:
                holders[block] = single
                continue
            if replica not in known:
                if known is not before:  # blocks of one prefix have the same holders: they share the tuple
                    before, after = known, (replica, *known[: _MAX_HOLDERS - 1])
                holders[block] = after
            holders.move_to_end(block)
        while len(holders) > _MAX_KNOWN_BLOCKS:
            holders.popitem(last=False)


def hash_blocks(token_ids: Sequence[int], adapter: str = "") -> list[int]:
    """Return one hash per full block of the prompt, each over all blocks up to it; first one of the adapter alone.

    Token ids hash equally in every process. A collision sends a request to a replica that does not fit.
    """
    running = _hash_point(adapter) if adapter else 0
    hashes = [running] if adapter else []
    ids = token_ids if isinstance(token_ids, tuple) else tuple(token_ids)
    for start in range(0, min(len(ids), _MAX_BLOCKS * BLOCK_TOKENS) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        running = hash((running, ids[start : start + BLOCK_TOKENS]))
        hashes.append(running)
    return hashes


def _hash_point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())
