"""Who computes what in the next step of continuous batching. Pure: no torch, no clock, no threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from enginebay.engines.transformers.row import Row

SMALLEST_SHELF = 256


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of one row's tokens to compute; `wanted`: the next token is drawn from its last position."""

    key: int
    start: int
    tokens: list[int]
    wanted: bool


@dataclass(frozen=True, slots=True)
class Reserve:
    """Make room in the KV cache for that many tokens of a row."""

    key: int
    length: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Copy the first `length` cached tokens of a row to a new one."""

    key: int
    copy: int
    length: int


@dataclass(frozen=True, slots=True)
class Release:
    key: int


CacheOp = Reserve | Fork | Release


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: cache operations in order, then segments; all rows use one adapter (or none)."""

    lora: str | None
    operations: list[CacheOp]
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class Limits:
    rows: int  # computed together
    step_tokens: int  # in one forward pass
    cached_tokens: int  # in the KV cache, unused ends of its shelves included
    context_length: int


def shelf_capacity(length: int, context_length: int) -> int:
    """Room a row of this length gets: powers of two, so that at most half of it is unused."""
    capacity = SMALLEST_SHELF
    while capacity < length:
        capacity *= 2
    return max(length, min(capacity, context_length))


@dataclass(slots=True)
class Schedule:
    """Waiting and running rows, and the cache operations decided since the last step."""

    limits: Limits
    waiting: deque[Row] = field(default_factory=deque)
    running: list[Row] = field(default_factory=list)
    operations: list[CacheOp] = field(default_factory=list)
    _last_lora: str | None = None

    def add(self, row: Row) -> None:
        self.waiting.append(row)

    def count(self) -> int:
        """Rows held, those that will start from another row's prompt included."""
        return len(self.waiting) + len(self.running) + sum(len(r.siblings) for r in (*self.waiting, *self.running))

    def used_ratio(self) -> float:
        """Share of the KV cache that running rows take. Any thread may ask: it looks at a copy."""
        return min(1.0, self._capacity(tuple(self.running)) / max(1, self.limits.cached_tokens))

    def drop(self, number: int) -> None:
        """Forget a request: its rows stop within this step."""
        self.waiting = deque(row for row in self.waiting if row.number != number)
        for row in [row for row in self.running if row.number == number]:
            self.finish(row)

    def finish(self, row: Row) -> None:
        self.running.remove(row)
        self.operations.append(Release(row.key))

    def plan(self) -> Step | None:
        """The next step, or `None` when there is nothing to do. Without segments it only frees what has ended."""
        segments: list[Segment] = []
        lora = self._next_lora()
        if lora is not _NOBODY:
            self._make_room()
            segments = self._running_segments(lora) + self._admit(lora)
        if not segments and not self.operations:
            return None
        operations, self.operations = self.operations, []
        return Step(None if lora is _NOBODY else lora, operations, segments)

    def done(self, step: Step) -> None:
        """Note what a step has put into the cache."""
        rows = {row.key: row for row in self.running}
        for segment in step.segments:
            rows[segment.key].cached = segment.start + len(segment.tokens)

    def fork(self, leader: Row) -> None:
        """The leader's prompt is computed: its siblings go on from there, or queue first where there is no room."""
        for sibling in leader.siblings:
            if sibling.finished is not None:
                continue
            if len(self.running) < self.limits.rows and self._fits(sibling):
                sibling.cached = len(leader.prompt)
                self.running.append(sibling)
                self.operations.append(Fork(leader.key, sibling.key, sibling.cached))
            else:
                self.waiting.appendleft(sibling)
        leader.siblings = []

    def _next_lora(self) -> Any:
        """Adapters take turns, one step each."""
        wanted = sorted({row.lora or "" for row in (*self.running, *self.waiting)})
        if not wanted:
            return _NOBODY
        later = [name for name in wanted if name > (self._last_lora or "")] if self._last_lora is not None else wanted
        chosen = (later or wanted)[0]
        self._last_lora = chosen
        return chosen or None

    def _running_segments(self, lora: str | None) -> list[Segment]:
        """Every row that decodes, then the rest of prompts that were begun."""
        mine = [row for row in self.running if row.lora == lora]
        decoding = [row for row in mine if row.cached == row.length - 1]
        budget = self.limits.step_tokens
        segments = [self._segment(row, 1) for row in decoding]
        for row in mine:
            left = budget - sum(len(segment.tokens) for segment in segments)
            if row.cached < row.length - 1 and left > 0:
                segments.append(self._segment(row, min(left, row.length - row.cached)))
        return segments

    def _admit(self, lora: str | None) -> list[Segment]:
        """Start waiting rows: whole prompts while they fit; a long one begins in pieces when it is first in line."""
        segments: list[Segment] = []
        budget = self.limits.step_tokens
        left = budget - sum(1 for row in self.running if row.lora == lora)
        left -= sum(row.length - row.cached for row in self.running if row.lora == lora and row.cached < row.length - 1)
        for row in [row for row in self.waiting if row.lora == lora]:
            if len(self.running) >= self.limits.rows or left <= 0 or not self._fits(row):
                break
            size = row.length
            if size > left and (segments or size <= budget // 2):
                break
            self.waiting.remove(row)
            self.running.append(row)
            segments.append(self._segment(row, min(left, size)))
            left -= size
        return segments

    def _segment(self, row: Row, count: int) -> Segment:
        stop = row.cached + count
        self.operations.append(Reserve(row.key, stop))
        return Segment(row.key, row.cached, row.tokens(row.cached, stop), wanted=stop == row.length)

    def _capacity(self, rows: Iterable[Row]) -> int:
        return sum(shelf_capacity(row.length, self.limits.context_length) for row in rows)

    def _fits(self, row: Row) -> bool:
        return not self.running or self._capacity((*self.running, row)) <= self.limits.cached_tokens

    def _make_room(self) -> None:
        """Rows grew past the memory: the youngest give up their cache and compute it again later."""
        while len(self.running) > 1 and self._capacity(self.running) > self.limits.cached_tokens:
            row = self.running[-1]
            self.finish(row)
            row.cached = 0
            self.waiting.appendleft(row)


_NOBODY = object()
