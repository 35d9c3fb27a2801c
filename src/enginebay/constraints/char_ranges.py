"""Exact character sets as sorted ranges of code points. Pure.

`regex_charsets` has masks, which are faster to compare but may overlap where the sets do not.
"""

from __future__ import annotations

from collections.abc import Iterable

from enginebay.constraints import regex_syntax as syntax

CharRanges = tuple[tuple[int, int], ...]  # inclusive, sorted, apart from each other

MAX_CHAR = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)  # no text holds them

DIGITS: CharRanges = ((0x30, 0x39),)
WORD_CHARS: CharRanges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACES: CharRanges = ((0x09, 0x0D), (0x20, 0x20))
NEWLINE: CharRanges = ((0x0A, 0x0A),)


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> CharRanges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: CharRanges) -> CharRanges:
    rest: list[tuple[int, int]] = []
    begin = 0
    for low, high in ranges:
        if low > begin:
            rest.append((begin, low - 1))
        begin = high + 1
    if begin <= MAX_CHAR:
        rest.append((begin, MAX_CHAR))
    return tuple(rest)


def drop_surrogates(ranges: CharRanges) -> CharRanges:
    return complement(merge_ranges((*complement(ranges), _SURROGATES)))


_ESCAPED = {"d": DIGITS, "w": WORD_CHARS, "s": SPACES}
_SHORTHANDS = {
    ".": complement(NEWLINE),
    **_ESCAPED,
    **{letter.upper(): complement(ranges) for letter, ranges in _ESCAPED.items()},
}


def find_char_ranges(node: syntax.Char | syntax.Shorthand | syntax.CharClass | syntax.CharRange) -> CharRanges | None:
    """Return the characters that a node matches; None if it has a Unicode property, which each engine defines."""
    if isinstance(node, syntax.Char):
        return ((ord(node.char), ord(node.char)),)
    if isinstance(node, syntax.CharRange):
        return ((ord(node.low), ord(node.high)),)
    if isinstance(node, syntax.Shorthand):
        return _SHORTHANDS.get(node.letter)
    members = [find_char_ranges(item) for item in node.items]
    if any(ranges is None for ranges in members):
        return None
    merged = merge_ranges(pair for ranges in members for pair in ranges or ())
    return complement(merged) if node.negated else merged


def is_matchable(ranges: CharRanges) -> bool:
    """Return whether text can match: a NUL or a lone surrogate is no text to the engines."""
    return any(high > 0 for _, high in drop_surrogates(ranges))
