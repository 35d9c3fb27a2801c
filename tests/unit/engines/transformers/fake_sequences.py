"""Sequences without a model: tokens are characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enginebay.contract import GenerateRequest, Sampling
from enginebay.engines.transformers.decoding.sequence_state import SequenceState

EOS = 0


class LetterTokenizer:
    """Token n is the character n; 0 is the EOS token and has no text."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(i) for i in ids if i)


def make_sequence(
    sequence_id: int,
    prompt: int | str = 4,
    lora: str | None = None,
    context: int = 4096,
    number: int | None = None,
    generated: tuple[int, ...] = (),
    **sampling: Any,
) -> SequenceState:
    ids = tuple(map(ord, prompt)) if isinstance(prompt, str) else tuple(range(1, prompt + 1))
    request = GenerateRequest(token_ids=ids, sampling=Sampling(**sampling), lora=lora, generated=generated)
    return SequenceState(
        sequence_id,
        sequence_id if number is None else number,
        0,
        request,
        1,
        frozenset({EOS}),
        context,
        LetterTokenizer(),
    )


def append_and_decode(sequence: SequenceState, token: int) -> str:
    """Append a token and return the text to send."""
    sequence.append_token(token)
    return sequence.take_text()
