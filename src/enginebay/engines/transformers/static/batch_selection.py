"""Selection of the next batch of generate(). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.engines.transformers.decoding.sequence_state import SequenceState

EXPECTED_OUTPUT_TOKENS = 256  # per output; few requests use all of max_tokens


@dataclass(frozen=True, slots=True)
class BatchRules:
    strategy: str  # static, dynamic, sorted_static, sorted_dynamic
    size: int
    max_tokens: int  # of prompts and outputs, padding included; for dynamic batches
    max_wait_s: float

    @property
    def is_dynamic(self) -> bool:
        return self.strategy.endswith("dynamic")

    @property
    def is_sorted(self) -> bool:
        return self.strategy.startswith("sorted")


def is_batch_ready(rules: BatchRules, waiting: int, waited_s: float) -> bool:
    """Return whether a batch is full, or its first sequence has waited for `max_wait_s`."""
    return waiting >= rules.size or (waiting > 0 and waited_s >= rules.max_wait_s)


def select_batch(rules: BatchRules, waiting: Sequence[SequenceState]) -> list[SequenceState]:
    """Return the next batch: one adapter, at most `size` sequences and, if dynamic, `max_tokens` tokens; never empty."""
    queue = sorted(waiting, key=lambda sequence: len(sequence.prompt)) if rules.is_sorted else list(waiting)
    queue = [sequence for sequence in queue if sequence.lora == queue[0].lora]
    batch: list[SequenceState] = []
    for sequence in queue[: rules.size]:
        if batch and rules.is_dynamic and count_padded_tokens([*batch, sequence]) > rules.max_tokens:
            break
        batch.append(sequence)
    return batch


def count_padded_tokens(sequences: Sequence[SequenceState]) -> int:
    """Return the tokens of a batch in which every sequence is padded to the longest."""
    prompt = max(len(sequence.prompt) for sequence in sequences)
    output = max(min(sequence.max_output_tokens, EXPECTED_OUTPUT_TOKENS) for sequence in sequences)
    return len(sequences) * (prompt + output)
