"""Runs of tokens that come again. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def find_ngram_completions(size: int, tokens: Sequence[int]) -> set[int]:
    """Tokens that would complete a run of `size` tokens that is already there."""
    if len(tokens) < size:
        return set()
    if size == 1:
        return set(tokens)
    last = list(tokens[-(size - 1) :])
    starts = range(len(tokens) - size + 1)
    return {tokens[i + size - 1] for i in starts if tokens[i] == last[0] and list(tokens[i : i + size - 1]) == last}
