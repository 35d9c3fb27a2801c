"""Continuous batching: sequences join and leave the batch between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enginebay.engines.transformers.continuous.model_runner import ModelRunner
from enginebay.engines.transformers.continuous.scheduler import BatchLimits, Segment, StepScheduler
from enginebay.engines.transformers.decoding.output_writer import OutputWriter
from enginebay.engines.transformers.decoding.sequence_state import SampledToken, SequenceState
from enginebay.engines.transformers.decoding.token_sampler import read_sampled, sample_on_device
from enginebay.engines.transformers.distributed.ranks import RankGroup


class ContinuousBatcher:
    """Plans a step, runs it on every rank, samples the tokens and emits them.

    On an asynchronous device the next step starts before the last step's tokens are detokenized: a sequence ends by
    its tokens alone, or else its text is decoded at once (see `SequenceState`).
    """

    def __init__(self, runner: ModelRunner, limits: BatchLimits, output: OutputWriter, ranks: RankGroup) -> None:
        self._runner = runner
        self._scheduler = StepScheduler(limits)
        self._output = output
        self._ranks = ranks
        self._pending_output: list[tuple[SequenceState, SampledToken]] = []
        self.steps = 0

    def add(self, sequences: Sequence[SequenceState]) -> None:
        """Add all choices of one request: the first one prefills the prompt for all."""
        leader, *siblings = sequences
        leader.siblings = list(siblings)
        self._scheduler.add(leader)

    def cancel(self, number: int) -> None:
        self._scheduler.cancel(number)

    def reset(self) -> None:
        """Discard all state after a failed step. Every request has been cancelled."""
        self._scheduler.operations.clear()
        self._runner.reset()

    def get_request_numbers(self) -> set[int]:
        """Return the waiting and running requests."""
        return {sequence.number for sequence in (*self._scheduler.waiting, *self._scheduler.running)}

    def get_running_numbers(self) -> set[int]:
        """Return the running requests. Thread-safe."""
        return {sequence.number for sequence in tuple(self._scheduler.running)}

    def get_adapters_in_use(self) -> set[str | None]:
        """Return the adapters of the waiting and running requests."""
        return {sequence.lora for sequence in (*self._scheduler.waiting, *self._scheduler.running)}

    def compute_kv_cache_usage(self) -> float:
        return self._scheduler.compute_kv_cache_usage()

    def advance(self) -> bool:
        """Run one step. Return False if there was nothing to do."""
        self._scheduler.separate_prefill = self._runner.has_graphs
        step = self._scheduler.plan()
        if step is None:
            return self._emit_pending()
        self._ranks.broadcast(step)
        sampled: Any = None
        try:
            segments, logits = self._runner.run(step)
            leaders, sequences = self._find_sequences(segments)
            if sequences:
                logits = _repeat_for_siblings(logits, leaders)
                sampled = sample_on_device(logits, sequences, [sequence.output for sequence in sequences])
        finally:
            self._emit_pending()  # even if this step fails: the last one is complete
        self._scheduler.commit_step(step)
        self.steps += bool(step.segments)  # a step without segments only frees memory
        if sequences:
            self._append_tokens(leaders, sequences, read_sampled(sampled, logits, sequences))
            if not self._runner.is_async:
                self._emit_pending()
        return True

    def _find_sequences(self, segments: Sequence[Segment]) -> tuple[list[SequenceState], list[SequenceState]]:
        """Return the sequences of these segments, without and with the siblings that share their prompts."""
        by_id = {sequence.sequence_id: sequence for sequence in self._scheduler.running}
        leaders = [by_id[segment.sequence_id] for segment in segments]
        return leaders, [sequence for leader in leaders for sequence in (leader, *leader.siblings)]

    def _append_tokens(
        self, leaders: Sequence[SequenceState], sequences: Sequence[SequenceState], sampled: Sequence[SampledToken]
    ) -> None:
        self._pending_output = list(zip(sequences, sampled, strict=True))
        for sequence, token in self._pending_output:
            sequence.append_token(token.token)
        for leader in leaders:
            if leader.siblings:
                self._scheduler.fork(leader)
        self._scheduler.remove_finished()

    def _emit_pending(self) -> bool:
        """Emit the tokens of the last step. Return False if there are none."""
        pending, self._pending_output = self._pending_output, []
        for sequence, token in pending:
            if self._output.is_open(sequence.number):
                self._output.emit_token(sequence, token)
        if pending:
            self._output.flush()
        return bool(pending)


def _repeat_for_siblings(logits: Any, leaders: Sequence[SequenceState]) -> Any:
    """Repeat each leader's logits for its siblings."""
    if not any(leader.siblings for leader in leaders):
        return logits
    return logits[[i for i, leader in enumerate(leaders) for _ in (leader, *leader.siblings)]]
