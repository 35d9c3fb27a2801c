"""The scheduler of continuous batching: plans each step and sizes the KV cache. Pure: no torch, no clock, no threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from enginebay.engines.transformers.decoding.sequence_state import SequenceState

MIN_BUCKET_CAPACITY = 256
MAX_PREFILL_WAIT_STEPS = 8  # with separate prefill: steps that a prompt waits for others
DECODES_PER_PREFILL = 16  # one waiting prompt per this many decoding sequences is enough
MAX_PREFILL_BURST = 4  # maximum consecutive prefill steps
_FIRST_ROWS = 32
_MAX_BUCKET_SHARE = 8  # a new bucket takes at most 1/8 of the memory, unless it needs more


class Segment(NamedTuple):
    """Consecutive tokens of one sequence to compute. `needs_logits`: sample the next token from its last position."""

    sequence_id: int
    start: int
    tokens: list[int]
    needs_logits: bool


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve KV cache capacity for this many tokens of a sequence."""

    sequence_id: int
    length: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Copy the first `length` cached tokens of a sequence to a new one."""

    sequence_id: int
    copy_id: int
    length: int


@dataclass(frozen=True, slots=True)
class Release:
    sequence_id: int


CacheOp = Reserve | Fork | Release


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """One forward pass: cache operations in order, then segments. All sequences use the same adapter, or none."""

    lora: str | None
    operations: list[CacheOp]
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    max_sequences: int  # computed together
    max_step_tokens: int  # in one forward pass
    max_cached_tokens: int  # capacity of the KV cache, unused ends of sequences included
    context_length: int


def compute_bucket_capacity(length: int, context_length: int) -> int:
    """Return the capacity for a sequence of this length: a power of two, so at most half of it is unused."""
    capacity = MIN_BUCKET_CAPACITY
    while capacity < length:
        capacity *= 2
    return max(length, min(capacity, context_length))


@dataclass(frozen=True, slots=True)
class KVCacheBudget:
    """Capacity of the KV cache in tokens, and the maximum number of rows.

    With a budget, buckets are allocated large and kept when empty: a CUDA graph holds the addresses of its bucket's
    tensors and is lost when they change. Without one, buckets grow by doubling and are freed when empty.
    """

    tokens: int
    max_rows: int


def choose_bucket_rows(
    needed: int, allocated: int, capacity: int, allocated_tokens: int, budget: KVCacheBudget | None
) -> int:
    """Return the new row count of a bucket that must grow. `allocated_tokens`: of all buckets together."""
    if budget is None:
        return max(needed, 2 * allocated)
    preferred = max(_FIRST_ROWS, 2 * allocated, budget.tokens // _MAX_BUCKET_SHARE // capacity)
    affordable = allocated + max(0, budget.tokens - allocated_tokens) // capacity
    return max(needed, min(preferred, budget.max_rows, affordable))


def should_prefill(prompts: int, decoding: int, waited_steps: int) -> bool:
    """Return whether the next step prefills prompts while decoding sequences wait.

    Prompts wait until there is one per `DECODES_PER_PREFILL` decoding sequences, or for `MAX_PREFILL_WAIT_STEPS` steps.
    After a prefill step (`waited_steps` is then minus the number of consecutive ones) a decode step follows, unless at
    least as many prompts wait as sequences decode; after `MAX_PREFILL_BURST` it always does. So neither side starves.
    """
    if not prompts or not decoding:
        return prompts > 0
    if waited_steps < 0:
        return prompts >= decoding and -waited_steps < MAX_PREFILL_BURST
    return prompts * DECODES_PER_PREFILL >= decoding or waited_steps >= MAX_PREFILL_WAIT_STEPS


@dataclass(slots=True)
class StepScheduler:
    """Waiting and running sequences, and the cache operations since the last step.

    `separate_prefill`: a step either prefills prompts or decodes, see `should_prefill`; otherwise prompts join decode steps.
    """

    limits: BatchLimits
    waiting: deque[SequenceState] = field(default_factory=deque)
    running: list[SequenceState] = field(default_factory=list)
    operations: list[CacheOp] = field(default_factory=list)
    separate_prefill: bool = False
    _last_lora: str | None = None
    _prefill_waits: dict[str | None, int] = field(default_factory=dict)  # `waited_steps` of each adapter

    def add(self, sequence: SequenceState) -> None:
        self.waiting.append(sequence)

    def compute_kv_cache_usage(self) -> float:
        """Return the share of the KV cache in use. Thread-safe: it reads a copy."""
        return min(1.0, self._sum_capacity(tuple(self.running)) / max(1, self.limits.max_cached_tokens))

    def cancel(self, number: int) -> None:
        """Drop a request; its sequences stop with the current step."""
        self.waiting = deque(sequence for sequence in self.waiting if sequence.number != number)
        for sequence in [sequence for sequence in self.running if sequence.number == number]:
            self.remove(sequence)

    def remove(self, sequence: SequenceState) -> None:
        self.running.remove(sequence)
        self._release(sequence)

    def remove_finished(self) -> None:
        """Release all finished sequences."""
        finished = [sequence for sequence in self.running if sequence.finish_reason is not None]
        if finished:
            self.running = [sequence for sequence in self.running if sequence.finish_reason is None]
            for sequence in finished:
                self._release(sequence)

    def plan(self) -> ScheduledStep | None:
        """Return the next step, or None if there is nothing to do. A step without segments only frees memory."""
        self._preempt()
        lora, segments = self._choose_segments()
        if not segments and not self.operations:
            return None
        operations, self.operations = self.operations, []
        return ScheduledStep(lora, operations, segments)

    def commit_step(self, step: ScheduledStep) -> None:
        """Record the tokens that a step added to the cache."""
        sequences = {sequence.sequence_id: sequence for sequence in self.running}
        for segment in step.segments:
            sequences[segment.sequence_id].cached_tokens = segment.start + len(segment.tokens)

    def fork(self, leader: SequenceState) -> None:
        """Fork the leader's siblings after its prefill; those without capacity go to the front of the queue."""
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
        """Choose the segments of one adapter. Adapters alternate; one without capacity is skipped."""
        for lora in self._order_adapters():
            segments = self._build_segments(lora)
            if segments:
                self._last_lora = lora or ""
                return lora, segments
        return None, []

    def _order_adapters(self) -> list[str | None]:
        """Return the adapters in use, starting with the next in turn."""
        names = sorted({sequence.lora or "" for sequence in (*self.running, *self.waiting)})
        later = [name for name in names if self._last_lora is None or name > self._last_lora]
        return [name or None for name in (*later, *names[: len(names) - len(later)])]

    def _build_segments(self, lora: str | None) -> list[Segment]:
        running = [sequence for sequence in self.running if sequence.lora == lora]
        decoding = [sequence for sequence in running if sequence.cached_tokens == sequence.length - 1]
        partial = (
            [sequence for sequence in running if sequence.cached_tokens < sequence.length - 1]
            if len(decoding) < len(running)
            else []
        )
        if not self.separate_prefill:
            segments = [self._build_segment(sequence, 1) for sequence in decoding]
            return segments + self._build_prefill_segments(lora, partial, self.limits.max_step_tokens - len(segments))
        if self._should_prefill(lora, len(decoding), len(partial)):
            return self._build_prefill_segments(lora, partial, self.limits.max_step_tokens)
        return [self._build_segment(sequence, 1) for sequence in decoding]

    def _should_prefill(self, lora: str | None, decoding: int, partial: int) -> bool:
        """Apply `should_prefill` to the prompts that fit now, and update their wait count."""
        free = self.limits.max_sequences - len(self.running)
        queue = [sequence for sequence in self.waiting if sequence.lora == lora] if self.waiting and free > 0 else []
        prompts = partial + (min(free, len(queue)) if queue and self._has_capacity_for(queue[0]) else 0)
        waited = self._prefill_waits.get(lora, 0)
        prefill = should_prefill(prompts, decoding, waited)
        self._prefill_waits[lora] = min(waited, 0) - 1 if prefill else max(waited, -1) + 1 if prompts else 0
        return prefill

    def _build_prefill_segments(self, lora: str | None, partial: Sequence[SequenceState], budget: int) -> list[Segment]:
        """Continue partial prefills, then admit new prompts, within `budget` tokens."""
        segments = []
        for sequence in partial:
            if budget > 0:
                size = sequence.length - sequence.cached_tokens
                segments.append(self._build_segment(sequence, min(budget, size)))
                budget -= size
        return segments + self._admit(lora, budget)

    def _admit(self, lora: str | None, budget: int) -> list[Segment]:
        """Start waiting sequences: whole prompts while they fit. Only the first may start with a chunk of its prompt."""
        segments: list[Segment] = []
        if not self.waiting:
            return segments
        capacity = self._sum_capacity(self.running)
        for sequence in [sequence for sequence in self.waiting if sequence.lora == lora]:
            capacity += compute_bucket_capacity(sequence.length, self.limits.context_length)
            full = bool(self.running) and capacity > self.limits.max_cached_tokens
            if len(self.running) >= self.limits.max_sequences or budget <= 0 or full:
                break
            size = sequence.length
            if size > budget and (segments or size <= self.limits.max_step_tokens // 2):
                break
            self.waiting.remove(sequence)
            self.running.append(sequence)
            segments.append(self._build_segment(sequence, min(budget, size)))
            budget -= size
        return segments

    def _build_segment(self, sequence: SequenceState, count: int) -> Segment:
        start, length = sequence.cached_tokens, sequence.length
        stop = start + count
        if stop > sequence.reserved_tokens:
            sequence.reserved_tokens = compute_bucket_capacity(stop, self.limits.context_length)
            self.operations.append(Reserve(sequence.sequence_id, stop))
        # The common case: only the last token.
        tokens = (
            [sequence.output[-1]]
            if stop == length == start + 1 and sequence.output
            else sequence.slice_tokens(start, stop)
        )
        return Segment(sequence.sequence_id, start, tokens, stop == length)

    def _release(self, sequence: SequenceState) -> None:
        sequence.reserved_tokens = 0
        self.operations.append(Release(sequence.sequence_id))

    def _sum_capacity(self, sequences: Iterable[SequenceState]) -> int:
        return sum(compute_bucket_capacity(sequence.length, self.limits.context_length) for sequence in sequences)

    def _has_capacity_for(self, sequence: SequenceState) -> bool:
        return not self.running or self._sum_capacity((*self.running, sequence)) <= self.limits.max_cached_tokens

    def _preempt(self) -> None:
        """Preempt the youngest sequences while the cache exceeds its limit; they are prefilled again later."""
        while len(self.running) > 1 and self._sum_capacity(self.running) > self.limits.max_cached_tokens:
            sequence = self.running[-1]
            self.remove(sequence)
            sequence.cached_tokens = 0
            self.waiting.appendleft(sequence)
