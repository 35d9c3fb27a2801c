"""Who computes what in the next step of continuous batching. Pure: no torch, no clock, no threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from enginebay.engines.transformers.decoding.sequence_state import SequenceState

MIN_BUCKET_CAPACITY = 256
MAX_PREFILL_WAIT_STEPS = 8  # steps that prompts wait for company, where they are computed apart
DECODES_PER_PREFILL = 16  # one waiting prompt for so many that decode is enough company
MAX_PREFILL_BURST = 4  # steps of prompts in a row, at most


class Segment(NamedTuple):
    """A run of one row's tokens to compute; `wanted`: the next token is drawn from its last position."""

    sequence_id: int
    start: int
    tokens: list[int]
    needs_logits: bool


@dataclass(frozen=True, slots=True)
class Reserve:
    """Make room in the KV cache for that many tokens of a row."""

    sequence_id: int
    length: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Copy the first `length` cached tokens of a row to a new one."""

    sequence_id: int
    copy_id: int
    length: int


@dataclass(frozen=True, slots=True)
class Release:
    sequence_id: int


CacheOp = Reserve | Fork | Release


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """One forward pass: cache operations in order, then segments; all rows use one adapter (or none)."""

    lora: str | None
    operations: list[CacheOp]
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    max_sequences: int  # computed together
    max_step_tokens: int  # in one forward pass
    max_cached_tokens: int  # in the KV cache, unused ends of its shelves included
    context_length: int


def compute_bucket_capacity(length: int, context_length: int) -> int:
    """Room a row of this length gets: powers of two, so that at most half of it is unused."""
    capacity = MIN_BUCKET_CAPACITY
    while capacity < length:
        capacity *= 2
    return max(length, min(capacity, context_length))


def should_prefill(prompts: int, decoding: int, waited_steps: int) -> bool:
    """Whether the next step computes prompts, where those who decode must wait meanwhile.

    Prompts gather until there is one for every `COMPANY` rows that decode, or until they have `waited` for `PATIENCE`
    steps. After a step of prompts (`waited` is then minus the number of them in a row) whoever decodes has one, unless
    more rows wait than decode, and after a `BURST` in any case. So neither side waits without end.
    """
    if not prompts or not decoding:
        return prompts > 0
    if waited_steps < 0:
        return prompts >= decoding and -waited_steps < MAX_PREFILL_BURST
    return prompts * DECODES_PER_PREFILL >= decoding or waited_steps >= MAX_PREFILL_WAIT_STEPS


@dataclass(slots=True)
class StepScheduler:
    """Waiting and running rows, and the cache operations decided since the last step.

    `apart`: a step computes either prompts or one token of every row that decodes, see `prompts_are_due`; otherwise
    prompts join those who decode.
    """

    limits: BatchLimits
    waiting: deque[SequenceState] = field(default_factory=deque)
    running: list[SequenceState] = field(default_factory=list)
    operations: list[CacheOp] = field(default_factory=list)
    separate_prefill: bool = False
    _last_lora: str | None = None
    _prefill_waits: dict[str | None, int] = field(default_factory=dict)  # each adapter's, as `prompts_are_due` has it

    def add(self, row: SequenceState) -> None:
        self.waiting.append(row)

    def count_sequences(self) -> int:
        """Rows held, those that will start from another row's prompt included."""
        return len(self.waiting) + len(self.running) + sum(len(r.siblings) for r in (*self.waiting, *self.running))

    def compute_kv_cache_usage(self) -> float:
        """Share of the KV cache that running rows take. Any thread may ask: it looks at a copy."""
        return min(1.0, self._sum_capacity(tuple(self.running)) / max(1, self.limits.max_cached_tokens))

    def cancel(self, number: int) -> None:
        """Forget a request: its rows stop within this step."""
        self.waiting = deque(row for row in self.waiting if row.number != number)
        for row in [row for row in self.running if row.number == number]:
            self.remove(row)

    def remove(self, row: SequenceState) -> None:
        self.running.remove(row)
        self._release(row)

    def remove_finished(self) -> None:
        """Let go of every row that has come to its end."""
        ended = [row for row in self.running if row.finish_reason is not None]
        if ended:
            self.running = [row for row in self.running if row.finish_reason is None]
            for row in ended:
                self._release(row)

    def plan(self) -> ScheduledStep | None:
        """The next step, or `None` when there is nothing to do. Without segments it only frees what has ended."""
        self._preempt()
        lora, segments = self._choose_segments()
        if not segments and not self.operations:
            return None
        operations, self.operations = self.operations, []
        return ScheduledStep(lora, operations, segments)

    def commit_step(self, step: ScheduledStep) -> None:
        """Note what a step has put into the cache."""
        rows = {row.sequence_id: row for row in self.running}
        for segment in step.segments:
            rows[segment.sequence_id].cached_tokens = segment.start + len(segment.tokens)

    def fork(self, leader: SequenceState) -> None:
        """The leader's prompt is computed: its siblings go on from there, or queue first where there is no room."""
        for sibling in leader.siblings:
            if sibling.finish_reason is not None:
                continue
            if len(self.running) < self.limits.max_sequences and self._has_capacity_for(sibling):
                sibling.cached_tokens = len(leader.prompt)
                sibling.reserved_tokens = compute_bucket_capacity(sibling.cached_tokens, self.limits.context_length)
                self.running.append(sibling)
                self.operations.append(Fork(leader.sequence_id, sibling.sequence_id, sibling.cached_tokens))
            else:
                self.waiting.appendleft(sibling)
        leader.siblings = []

    def _choose_segments(self) -> tuple[str | None, list[Segment]]:
        """Adapters take turns, one step each; one whose rows all wait for room that others have is passed over."""
        for lora in self._order_adapters():
            segments = self._build_segments(lora)
            if segments:
                self._last_lora = lora or ""
                return lora, segments
        return None, []

    def _order_adapters(self) -> list[str | None]:
        """Adapters of the rows that are held, the one whose turn it is first."""
        wanted = sorted({row.lora or "" for row in (*self.running, *self.waiting)})
        later = [name for name in wanted if self._last_lora is None or name > self._last_lora]
        return [name or None for name in (*later, *wanted[: len(wanted) - len(later)])]

    def _build_segments(self, lora: str | None) -> list[Segment]:
        mine = [row for row in self.running if row.lora == lora]
        decoding = [row for row in mine if row.cached_tokens == row.length - 1]
        begun = [row for row in mine if row.cached_tokens < row.length - 1] if len(decoding) < len(mine) else []
        if not self.separate_prefill:
            segments = [self._build_segment(row, 1) for row in decoding]
            return segments + self._build_prefill_segments(lora, begun, self.limits.max_step_tokens - len(segments))
        if self._should_prefill(lora, len(decoding), len(begun)):
            return self._build_prefill_segments(lora, begun, self.limits.max_step_tokens)
        return [self._build_segment(row, 1) for row in decoding]

    def _should_prefill(self, lora: str | None, decoding: int, begun: int) -> bool:
        """`prompts_are_due` for the prompts that could be computed now, and count their waiting."""
        free = self.limits.max_sequences - len(self.running)
        line = [row for row in self.waiting if row.lora == lora] if self.waiting and free > 0 else []
        prompts = begun + (min(free, len(line)) if line and self._has_capacity_for(line[0]) else 0)
        waited = self._prefill_waits.get(lora, 0)
        due = should_prefill(prompts, decoding, waited)
        self._prefill_waits[lora] = min(waited, 0) - 1 if due else max(waited, -1) + 1 if prompts else 0
        return due

    def _build_prefill_segments(self, lora: str | None, begun: Sequence[SequenceState], left: int) -> list[Segment]:
        """The rest of prompts that were begun, then new ones, in at most `left` tokens."""
        segments = []
        for row in begun:
            if left > 0:
                size = row.length - row.cached_tokens
                segments.append(self._build_segment(row, min(left, size)))
                left -= size
        return segments + self._admit(lora, left)

    def _admit(self, lora: str | None, left: int) -> list[Segment]:
        """Start waiting rows: whole prompts while they fit; a long one begins in pieces when it is first in line."""
        segments: list[Segment] = []
        if not self.waiting:
            return segments
        capacity = self._sum_capacity(self.running)
        for row in [row for row in self.waiting if row.lora == lora]:
            capacity += compute_bucket_capacity(row.length, self.limits.context_length)
            full = bool(self.running) and capacity > self.limits.max_cached_tokens
            if len(self.running) >= self.limits.max_sequences or left <= 0 or full:
                break
            size = row.length
            if size > left and (segments or size <= self.limits.max_step_tokens // 2):
                break
            self.waiting.remove(row)
            self.running.append(row)
            segments.append(self._build_segment(row, min(left, size)))
            left -= size
        return segments

    def _build_segment(self, row: SequenceState, count: int) -> Segment:
        start, length = row.cached_tokens, row.length
        stop = start + count
        if stop > row.reserved_tokens:
            row.reserved_tokens = compute_bucket_capacity(stop, self.limits.context_length)
            self.operations.append(Reserve(row.sequence_id, stop))
        # Nearly always the last token alone is wanted.
        tokens = [row.output[-1]] if stop == length == start + 1 and row.output else row.slice_tokens(start, stop)
        return Segment(row.sequence_id, start, tokens, stop == length)

    def _release(self, row: SequenceState) -> None:
        row.reserved_tokens = 0
        self.operations.append(Release(row.sequence_id))

    def _sum_capacity(self, rows: Iterable[SequenceState]) -> int:
        return sum(compute_bucket_capacity(row.length, self.limits.context_length) for row in rows)

    def _has_capacity_for(self, row: SequenceState) -> bool:
        return not self.running or self._sum_capacity((*self.running, row)) <= self.limits.max_cached_tokens

    def _preempt(self) -> None:
        """Rows grew past the memory: the youngest give up their cache and compute it again later."""
        while len(self.running) > 1 and self._sum_capacity(self.running) > self.limits.max_cached_tokens:
            row = self.running[-1]
            self.remove(row)
            row.cached_tokens = 0
            self.waiting.appendleft(row)
