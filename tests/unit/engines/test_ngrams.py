"""Detection of repeated n-grams."""

from __future__ import annotations

import random
from collections.abc import Sequence

from enginebay.engines.ngrams import find_ngram_completions


def find_by_brute_force(size: int, tokens: Sequence[int]) -> set[int]:
    ngrams = {tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)}
    return {token for token in range(4) if tuple([*tokens, token][-size:]) in ngrams and len(tokens) >= size}


def test_completions_equal_brute_force() -> None:
    source = random.Random(1)
    for _ in range(300):
        tokens = source.choices(range(4), k=source.randint(0, 12))
        size = source.randint(1, 4)
        assert find_ngram_completions(size, tokens) == find_by_brute_force(size, tokens)
