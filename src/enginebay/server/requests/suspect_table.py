"""Requests that were running when a worker died, and those that are refused for it. Pure but for the clock.

A request is known by a digest of what reaches the engine, so that one sent again is recognized.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Generic, Literal, NamedTuple, TypeVar

from enginebay.contract import GenerateRequest
from enginebay.worker import codec

MAX_REMEMBERED = 4096
REMEMBERED_S = 3600.0
T = TypeVar("T")


class SuspectEvent(NamedTuple):
    """What one server process tells the others. `addresses`: the workers at whose death the request ran."""

    kind: Literal["died", "cleared", "refused"]
    digest: bytes
    variant: str = ""
    addresses: tuple[str, ...] = ()
    sender: int = 0  # its process id


class _ExpiringMap(Generic[T]):
    """Remembers each entry for `REMEMBERED_S`, and at most `MAX_REMEMBERED`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.entries: OrderedDict[bytes, tuple[float, T]] = OrderedDict()  # oldest first

    def put(self, digest: bytes, value: T) -> None:
        self.pop(digest)
        self.entries[digest] = (self._clock() + REMEMBERED_S, value)
        self._drop_old()

    def get(self, digest: bytes) -> T | None:
        self._drop_old()
        entry = self.entries.get(digest)
        return None if entry is None else entry[1]

    def pop(self, digest: bytes) -> None:
        self.entries.pop(digest, None)

    def items(self) -> list[tuple[bytes, T]]:
        self._drop_old()
        return [(digest, value) for digest, (_, value) in self.entries.items()]

    def _drop_old(self) -> None:
        now = self._clock()
        while self.entries:
            expires_at, _ = next(iter(self.entries.values()))
            if expires_at > now and len(self.entries) <= MAX_REMEMBERED:
                return
            self.entries.popitem(last=False)


class SuspectTable:
    """Falsy while nothing is remembered, which is nearly always: a request then needs no digest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._deaths: _ExpiringMap[tuple[str, ...]] = _ExpiringMap(clock)
        self._refused: _ExpiringMap[tuple[str, ...]] = _ExpiringMap(clock)

    def __bool__(self) -> bool:
        return bool(self._deaths.entries or self._refused.entries)

    def get_deaths(self, digest: bytes) -> tuple[str, ...]:
        """Return the addresses of the workers at whose death the request ran."""
        return self._deaths.get(digest) or ()

    def is_refused(self, digest: bytes) -> bool:
        return self._refused.get(digest) is not None

    def apply(self, event: SuspectEvent) -> None:
        if event.kind == "died":
            known = self.get_deaths(event.digest)
            self._deaths.put(event.digest, tuple(dict.fromkeys((*known, *event.addresses))))
            return
        self._deaths.pop(event.digest)
        if event.kind == "refused":
            self._refused.put(event.digest, event.addresses)

    def list_events(self) -> tuple[SuspectEvent, ...]:
        """Return the events that make another table equal to this one."""
        died = [SuspectEvent("died", digest, addresses=addresses) for digest, addresses in self._deaths.items()]
        return (*died, *(SuspectEvent("refused", digest) for digest, _ in self._refused.items()))


def compute_digest(variant: str, requests: Sequence[GenerateRequest]) -> bytes:
    """Return the digest of what reaches the engine."""
    return _hash_parts(
        variant, [codec.encode_submit(0, request).SerializeToString(deterministic=True) for request in requests]
    )


def compute_embed_digest(variant: str, inputs: Sequence[Sequence[int]]) -> bytes:
    return _hash_parts(variant, [b"embed", *(repr(tuple(ids)).encode() for ids in inputs)])


def _hash_parts(variant: str, parts: Sequence[bytes]) -> bytes:
    digest = blake2b(digest_size=16)
    for part in (variant.encode("utf-8", "replace"), *parts):
        digest.update(len(part).to_bytes(8) + part)
    return digest.digest()
