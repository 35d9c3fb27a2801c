"""Detection of repeated n-grams. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def find_ngram_completions(size: int, tokens: Sequence[int]) -> set[int]:
    """Return the tokens that would complete an n-gram of `size` tokens that already occurs in `tokens`."""
    if len(tokens) < size:
        return set()
    if size == 1:
        return set(tokens)
    tail = list(tokens[-(size - 1) :])
    starts = range(len(tokens) - size + 1)
    return {tokens[i + size - 1] for i in starts if tokens[i] == tail[0] and list(tokens[i : i + size - 1]) == tail}
