"""What is known of a piece of a regex, and of pieces put together. Pure.

A repeat without end explodes when one text can be split into rounds in many ways: (a+)+, (a|a)*, (\\w+\\s?)*. To see it,
each part carries the characters it can begin with (`first`) and those with which it could have gone on (`tail`). Where
one round's tail meets the next round's first, the border between them is open. Rounds with a clear border, such as
(\\w+,)*, pass. The test goes by shape: it may refuse a harmless pattern of such a shape, and knows only common shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

COUNT_CAP = 10**12  # where counting stops
_MAX_PAIRWISE_BRANCHES = 32  # so many branches are compared each with each; more than that only with their neighbours

Masks = tuple[int, ...]  # a plain sequence of characters and classes


class RegexPart(NamedTuple):
    length: int | None  # of what it matches; None: it varies
    nullable: bool
    first: int
    tail: int
    single: int  # the characters that it matches all alone
    states: int
    is_ambiguous: bool  # one text can be matched in several ways: must not be repeated without end


EMPTY = RegexPart(0, True, 0, 0, 0, 0, False)


def match_char(mask: int) -> RegexPart:
    return RegexPart(1, False, mask, 0, mask, 1, False)


def concatenate(one: RegexPart, other: RegexPart) -> RegexPart:
    """One after the other. A part of fixed length that the first could run into only moves the border."""
    meets = bool(one.tail & other.first)
    goes_on = other.nullable or (meets and other.length is not None)
    return RegexPart(
        None if one.length is None or other.length is None else min(one.length + other.length, COUNT_CAP),
        one.nullable and other.nullable,
        one.first | (other.first if one.nullable else 0),
        other.tail | (one.tail if goes_on else 0),
        (one.single if other.nullable else 0) | (other.single if one.nullable else 0),
        min(one.states + other.states, COUNT_CAP),
        one.is_ambiguous or other.is_ambiguous or (meets and other.length is None),
    )


def repeat_bounded(part: RegexPart, low: int, high: int) -> RegexPart:
    """From `low` to `high` times; `high` is at least 1."""
    overlaps = high > 1 and bool(part.tail & part.first)
    empty_twice = part.nullable and (high > 1 or low == 0)
    return RegexPart(
        min(part.length * low, COUNT_CAP) if low == high and part.length is not None else None,
        part.nullable or low == 0,
        part.first,
        part.tail | (part.first if low != high else 0),
        part.single if low < 2 or part.nullable else 0,
        min(part.states * high, COUNT_CAP),
        part.is_ambiguous or overlaps or empty_twice,
    )


def repeat_unbounded(part: RegexPart, low: int) -> RegexPart:
    """From `low` times on, of a part whose rounds have clear borders and are never empty."""
    states = min(part.states * max(low, 1), COUNT_CAP)
    return RegexPart(None, low == 0, part.first, part.tail | part.first, part.single if low < 2 else 0, states, False)


def alternate(branches: Sequence[RegexPart], simple: Sequence[Masks], has_duplicates: bool) -> RegexPart:
    """One of several branches; `simple` are those that are plain sequences."""
    if len(branches) == 1:
        return branches[0]
    lengths = {one.length for one in branches}
    first = tail = single = states = 0
    is_open = has_duplicates or sum(one.nullable for one in branches) > 1
    for one in branches:
        is_open = is_open or one.is_ambiguous or bool(single & one.single)
        first, tail, single, states = first | one.first, tail | one.tail, single | one.single, states + one.states
    collide, further = _compare_pairwise(simple) if len(simple) <= _MAX_PAIRWISE_BRANCHES else _compare_sorted(simple)
    nullable = any(one.nullable for one in branches)
    return RegexPart(
        lengths.pop() if len(lengths) == 1 else None,
        nullable,
        first,
        tail | further | (first if nullable else 0),  # (a|) is a?
        single,
        min(states + 1, COUNT_CAP),
        is_open or collide,
    )


def _compare_pairwise(simple: Sequence[Masks]) -> tuple[bool, int]:
    """Do two branches match the same text? And with what could a branch go on, since a longer one begins like it?"""
    collide, further = False, 0
    for one, other in combinations(simple, 2):
        short, long = (one, other) if len(one) <= len(other) else (other, one)
        if short and all(a & b for a, b in zip(short, long, strict=False)):
            collide = collide or len(short) == len(long)
            further |= long[len(short)] if len(long) > len(short) else 0
    return collide, further


def _compare_sorted(simple: Sequence[Masks]) -> tuple[bool, int]:
    """The same for many branches, where only those with equal beginnings are seen."""
    collide, further = False, 0
    prefixes: list[Masks] = []  # of the branch at hand, each the beginning of the next
    for one in sorted(filter(None, simple)):
        while prefixes and one[: len(prefixes[-1])] != prefixes[-1]:
            prefixes.pop()
        if prefixes:
            collide = collide or one == prefixes[-1]
            further |= one[len(prefixes[-1])] if len(one) > len(prefixes[-1]) else 0
        prefixes.append(one)
    return collide, further
