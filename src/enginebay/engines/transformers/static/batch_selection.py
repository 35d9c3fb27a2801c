"""Which waiting rows make up the next batch of generate(). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.engines.transformers.decoding.sequence_state import SequenceState

EXPECTED_OUTPUT_TOKENS = 256  # tokens counted for an output; few requests use all of max_tokens


@dataclass(frozen=True, slots=True)
class BatchRules:
    strategy: str  # static, dynamic, sorted_static, sorted_dynamic
    size: int
    max_tokens: int  # of prompts and outputs, padding included; counts when dynamic
    max_wait_s: float

    @property
    def is_dynamic(self) -> bool:
        return self.strategy.endswith("dynamic")

    @property
    def is_sorted(self) -> bool:
        return self.strategy.startswith("sorted")


def is_batch_ready(rules: BatchRules, waiting: int, waited_s: float) -> bool:
    """A batch starts when it is full, or when its first row has waited long enough."""
    return waiting >= rules.size or (waiting > 0 and waited_s >= rules.max_wait_s)


def select_batch(rules: BatchRules, waiting: Sequence[SequenceState]) -> list[SequenceState]:
    """The next batch: one adapter, at most `size` rows, and when dynamic at most `tokens` tokens (but never no row)."""
    line = sorted(waiting, key=lambda row: len(row.prompt)) if rules.is_sorted else list(waiting)
    line = [row for row in line if row.lora == line[0].lora]
    batch: list[SequenceState] = []
    for row in line[: rules.size]:
        if batch and rules.is_dynamic and count_padded_tokens([*batch, row]) > rules.max_tokens:
            break
        batch.append(row)
    return batch


def count_padded_tokens(rows: Sequence[SequenceState]) -> int:
    """Tokens a batch costs when every row is as long as the longest."""
    prompt = max(len(row.prompt) for row in rows)
    output = max(min(row.max_output_tokens, EXPECTED_OUTPUT_TOKENS) for row in rows)
    return len(rows) * (prompt + output)
