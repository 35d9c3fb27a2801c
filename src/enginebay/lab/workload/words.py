"""The words synthetic prompts are made of: tokens that stay what they are on the way to text and back.

Most vocabularies have thousands of tokens that are a word with the space before it. Put in a row, each comes back as itself, since no
tokenizer joins tokens over the space between words. Where a vocabulary has too few, single pieces are taken of which any
two in a row come back as they were: a merge over a border would show in the pair, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from enginebay.errors import ConfigError
from enginebay.lab.workload.spec import TextTokenizer

MOST_WORDS = 4096
ENOUGH_WORDS = 256
MOST_PIECES = 64


def find_words(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """The ids of up to 4,096 words, the same for every seed. Never special or added tokens."""
    words: list[int] = []
    for number in _candidates(tokenizer):
        if _is_word(tokenizer, number):
            words.append(number)
            if len(words) == MOST_WORDS:
                break
    if len(words) < ENOUGH_WORDS:
        words = max(words, _pieces(tokenizer), key=len)
    if len(words) < 2:
        raise ConfigError(
            "no prompts can be made from this vocabulary: its tokens change on the way to text and back",
            "take a workload of kind jsonl",
            param="workload.kind",
        )
    return tuple(words)


def _candidates(tokenizer: TextTokenizer) -> Iterator[int]:
    """From the lowest id on: merges of frequent words come first."""
    barred = tokenizer.special_ids | tokenizer.added_ids
    return (number for number in range(tokenizer.vocabulary_size) if number not in barred)


def _is_word(tokenizer: TextTokenizer, number: int) -> bool:
    """Twice in a row, it reads as two words of ASCII letters and comes back as itself twice."""
    text = tokenizer.decode((number, number))
    parts = text.split()
    if len(parts) != 2 or parts[0] != parts[1] or not (parts[0].isascii() and parts[0].isalpha()):
        return False
    return tokenizer.encode(text, add_special=False) == [number, number]


def _pieces(tokenizer: TextTokenizer) -> list[int]:
    """Single pieces of letters, each safe beside every other and itself."""
    found: list[int] = []
    for number in _candidates(tokenizer):
        if not tokenizer.decode((number,)).strip().isalpha():
            continue
        pairs = [(number, number), *((a, b) for other in found for a, b in ((number, other), (other, number)))]
        if all(tokenizer.encode(tokenizer.decode(pair), add_special=False) == list(pair) for pair in pairs):
            found.append(number)
            if len(found) == MOST_PIECES:
                break
    return found
