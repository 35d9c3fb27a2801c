"""Continuous batching: every step computes what running rows need, and rows join and leave between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enginebay.engines.transformers.continuous.model_runner import ModelRunner
from enginebay.engines.transformers.continuous.scheduler import BatchLimits, Segment, StepScheduler
from enginebay.engines.transformers.decoding.output_writer import OutputWriter
from enginebay.engines.transformers.decoding.sampled_token import SampledToken
from enginebay.engines.transformers.decoding.sequence_state import SequenceState
from enginebay.engines.transformers.decoding.token_sampler import read_sampled, sample_on_device
from enginebay.engines.transformers.distributed.ranks import RankGroup


class ContinuousBatcher:
    """Plans a step, runs it on every rank, draws the tokens and hands them out.

    A device that works by itself is given the next step before the texts of the last one are made: which rows end is
    known from their tokens alone, or else their text is read at once (see `Row`).
    """

    def __init__(self, runner: ModelRunner, limits: BatchLimits, output: OutputWriter, ranks: RankGroup) -> None:
        self._runner = runner
        self._scheduler = StepScheduler(limits)
        self._output = output
        self._ranks = ranks
        self._pending_output: list[tuple[SequenceState, SampledToken]] = []
        self.steps = 0

    def add(self, rows: Sequence[SequenceState]) -> None:
        """All choices of one request: the first computes the prompt for all."""
        leader, *siblings = rows
        leader.siblings = list(siblings)
        self._scheduler.add(leader)

    def cancel(self, number: int) -> None:
        self._scheduler.cancel(number)

    def reset(self) -> None:
        """Every request has been cancelled because a step failed: nothing that it may have left half done counts."""
        self._scheduler.operations.clear()
        self._runner.reset()

    def get_request_numbers(self) -> set[int]:
        """Requests that are held."""
        return {row.number for row in (*self._scheduler.waiting, *self._scheduler.running)}

    def get_running_numbers(self) -> set[int]:
        """Requests that are in every step now. Any thread may ask."""
        return {row.number for row in tuple(self._scheduler.running)}

    def get_adapters_in_use(self) -> set[str | None]:
        """Adapters of the requests that are held."""
        return {row.lora for row in (*self._scheduler.waiting, *self._scheduler.running)}

    def compute_kv_cache_usage(self) -> float:
        return self._scheduler.compute_kv_cache_usage()

    def advance(self) -> bool:
        """One step; false when there was nothing to do."""
        self._scheduler.separate_prefill = self._runner.has_graphs
        step = self._scheduler.plan()
        if step is None:
            return self._emit_pending()
        self._ranks.broadcast(step)
        chosen: Any = None
        try:
            segments, logits = self._runner.run(step)
            leaders, rows = self._find_sequences(segments)
            if rows:
                logits = _repeat_for_siblings(logits, leaders)
                chosen = sample_on_device(logits, rows, [row.output for row in rows])
        finally:
            self._emit_pending()  # also if this step fails: what the last one made is complete
        self._scheduler.commit_step(step)
        self.steps += bool(step.segments)  # without any, it only frees memory
        if rows:
            self._append_tokens(leaders, rows, read_sampled(chosen, logits, rows))
            if not self._runner.is_async:
                self._emit_pending()
        return True

    def _find_sequences(self, segments: Sequence[Segment]) -> tuple[list[SequenceState], list[SequenceState]]:
        """The rows of these segments, and the same with those that start from their prompts."""
        by_key = {row.sequence_id: row for row in self._scheduler.running}
        leaders = [by_key[segment.sequence_id] for segment in segments]
        return leaders, [row for leader in leaders for row in (leader, *leader.siblings)]

    def _append_tokens(
        self, leaders: Sequence[SequenceState], rows: Sequence[SequenceState], drawn: Sequence[SampledToken]
    ) -> None:
        self._pending_output = list(zip(rows, drawn, strict=True))
        for row, one in self._pending_output:
            row.append_token(one.token)
        for leader in leaders:
            if leader.siblings:
                self._scheduler.fork(leader)
        self._scheduler.remove_finished()

    def _emit_pending(self) -> bool:
        """Texts of the last step's tokens; false when there are none."""
        unsaid, self._pending_output = self._pending_output, []
        for row, drawn in unsaid:
            if self._output.is_open(row.number):
                self._output.emit_token(row, drawn)
        if unsaid:
            self._output.flush()
        return bool(unsaid)


def _repeat_for_siblings(logits: Any, leaders: Sequence[SequenceState]) -> Any:
    """A row's logits once for itself and once for each of its siblings."""
    if not any(leader.siblings for leader in leaders):
        return logits
    return logits[[i for i, leader in enumerate(leaders) for _ in (leader, *leader.siblings)]]
