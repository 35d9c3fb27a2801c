"""Who computes what in the next step of continuous batching. Pure: no torch, no clock, no threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from enginebay.engines.transformers.row import Row

SMALLEST_SHELF = 256
PATIENCE = 8  # steps that prompts wait for company, where they are computed apart
COMPANY = 16  # one waiting prompt for so many that decode is enough company
BURST = 4  # steps of prompts in a row, at most


class Segment(NamedTuple):
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


def prompts_are_due(prompts: int, decoding: int, waited: int) -> bool:
    """Whether the next step computes prompts, where those who decode must wait meanwhile.

    Prompts gather until there is one for every `COMPANY` rows that decode, or until they have `waited` for `PATIENCE`
    steps. After a step of prompts (`waited` is then minus the number of them in a row) whoever decodes has one, unless
    more rows wait than decode, and after a `BURST` in any case. So neither side waits without end.
    """
    if not prompts or not decoding:
        return prompts > 0
    if waited < 0:
        return prompts >= decoding and -waited < BURST
    return prompts * COMPANY >= decoding or waited >= PATIENCE


@dataclass(slots=True)
class Schedule:
    """Waiting and running rows, and the cache operations decided since the last step.

    `apart`: a step computes either prompts or one token of every row that decodes, see `prompts_are_due`; otherwise
    prompts join those who decode.
    """

    limits: Limits
    waiting: deque[Row] = field(default_factory=deque)
    running: list[Row] = field(default_factory=list)
    operations: list[CacheOp] = field(default_factory=list)
    apart: bool = False
    _last_lora: str | None = None
    _waited: dict[str | None, int] = field(default_factory=dict)  # each adapter's, as `prompts_are_due` has it

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
        self._release(row)

    def finish_ended(self) -> None:
        """Let go of every row that has come to its end."""
        ended = [row for row in self.running if row.finished is not None]
        if ended:
            self.running = [row for row in self.running if row.finished is None]
            for row in ended:
                self._release(row)

    def plan(self) -> Step | None:
        """The next step, or `None` when there is nothing to do. Without segments it only frees what has ended."""
        self._make_room()
        lora, segments = self._next_segments()
        if not segments and not self.operations:
            return None
        operations, self.operations = self.operations, []
        return Step(lora, operations, segments)

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
                sibling.room = shelf_capacity(sibling.cached, self.limits.context_length)
                self.running.append(sibling)
                self.operations.append(Fork(leader.key, sibling.key, sibling.cached))
            else:
                self.waiting.appendleft(sibling)
        leader.siblings = []

    def _next_segments(self) -> tuple[str | None, list[Segment]]:
        """Adapters take turns, one step each; one whose rows all wait for room that others have is passed over."""
        for lora in self._turns():
            segments = self._segments(lora)
            if segments:
                self._last_lora = lora or ""
                return lora, segments
        return None, []

    def _turns(self) -> list[str | None]:
        """Adapters of the rows that are held, the one whose turn it is first."""
        wanted = sorted({row.lora or "" for row in (*self.running, *self.waiting)})
        later = [name for name in wanted if self._last_lora is None or name > self._last_lora]
        return [name or None for name in (*later, *wanted[: len(wanted) - len(later)])]

    def _segments(self, lora: str | None) -> list[Segment]:
        mine = [row for row in self.running if row.lora == lora]
        decoding = [row for row in mine if row.cached == row.length - 1]
        begun = [row for row in mine if row.cached < row.length - 1] if len(decoding) < len(mine) else []
        if not self.apart:
            segments = [self._segment(row, 1) for row in decoding]
            return segments + self._prompts(lora, begun, self.limits.step_tokens - len(segments))
        if self._due(lora, len(decoding), len(begun)):
            return self._prompts(lora, begun, self.limits.step_tokens)
        return [self._segment(row, 1) for row in decoding]

    def _due(self, lora: str | None, decoding: int, begun: int) -> bool:
        """`prompts_are_due` for the prompts that could be computed now, and count their waiting."""
        free = self.limits.rows - len(self.running)
        line = [row for row in self.waiting if row.lora == lora] if self.waiting and free > 0 else []
        prompts = begun + (min(free, len(line)) if line and self._fits(line[0]) else 0)
        waited = self._waited.get(lora, 0)
        due = prompts_are_due(prompts, decoding, waited)
        self._waited[lora] = min(waited, 0) - 1 if due else max(waited, -1) + 1 if prompts else 0
        return due

    def _prompts(self, lora: str | None, begun: Sequence[Row], left: int) -> list[Segment]:
        """The rest of prompts that were begun, then new ones, in at most `left` tokens."""
        segments = []
        for row in begun:
            if left > 0:
                size = row.length - row.cached
                segments.append(self._segment(row, min(left, size)))
                left -= size
        return segments + self._admit(lora, left)

    def _admit(self, lora: str | None, left: int) -> list[Segment]:
        """Start waiting rows: whole prompts while they fit; a long one begins in pieces when it is first in line."""
        segments: list[Segment] = []
        if not self.waiting:
            return segments
        capacity = self._capacity(self.running)
        for row in [row for row in self.waiting if row.lora == lora]:
            capacity += shelf_capacity(row.length, self.limits.context_length)
            full = bool(self.running) and capacity > self.limits.cached_tokens
            if len(self.running) >= self.limits.rows or left <= 0 or full:
                break
            size = row.length
            if size > left and (segments or size <= self.limits.step_tokens // 2):
                break
            self.waiting.remove(row)
            self.running.append(row)
            segments.append(self._segment(row, min(left, size)))
            left -= size
        return segments

    def _segment(self, row: Row, count: int) -> Segment:
        start, length = row.cached, row.length
        stop = start + count
        if stop > row.room:
            row.room = shelf_capacity(stop, self.limits.context_length)
            self.operations.append(Reserve(row.key, stop))
        # Nearly always the last token alone is wanted.
        tokens = [row.output[-1]] if stop == length == start + 1 and row.output else row.tokens(start, stop)
        return Segment(row.key, start, tokens, stop == length)

    def _release(self, row: Row) -> None:
        row.room = 0
        self.operations.append(Release(row.key))

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
