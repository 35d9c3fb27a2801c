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

MANY = 10**12  # where counting stops
_PAIRWISE = 32  # so many branches are compared each with each; more than that only with their neighbours

Masks = tuple[int, ...]  # a plain sequence of characters and classes


class Part(NamedTuple):
    length: int | None  # of what it matches; None: it varies
    nullable: bool
    first: int
    tail: int
    single: int  # the characters that it matches all alone
    states: int
    is_open: bool  # one text can be matched in several ways: must not be repeated without end


EMPTY = Part(0, True, 0, 0, 0, 0, False)


def position(mask: int) -> Part:
    return Part(1, False, mask, 0, mask, 1, False)


def joined(one: Part, other: Part) -> Part:
    """One after the other. A part of fixed length that the first could run into only moves the border."""
    meets = bool(one.tail & other.first)
    goes_on = other.nullable or (meets and other.length is not None)
    return Part(
        None if one.length is None or other.length is None else min(one.length + other.length, MANY),
        one.nullable and other.nullable,
        one.first | (other.first if one.nullable else 0),
        other.tail | (one.tail if goes_on else 0),
        (one.single if other.nullable else 0) | (other.single if one.nullable else 0),
        min(one.states + other.states, MANY),
        one.is_open or other.is_open or (meets and other.length is None),
    )


def repeated(part: Part, low: int, high: int) -> Part:
    """From `low` to `high` times; `high` is at least 1."""
    overlaps = high > 1 and bool(part.tail & part.first)
    empty_twice = part.nullable and (high > 1 or low == 0)
    return Part(
        min(part.length * low, MANY) if low == high and part.length is not None else None,
        part.nullable or low == 0,
        part.first,
        part.tail | (part.first if low != high else 0),
        part.single if low < 2 or part.nullable else 0,
        min(part.states * high, MANY),
        part.is_open or overlaps or empty_twice,
    )


def without_end(part: Part, low: int) -> Part:
    """From `low` times on, of a part whose rounds have clear borders and are never empty."""
    states = min(part.states * max(low, 1), MANY)
    return Part(None, low == 0, part.first, part.tail | part.first, part.single if low < 2 else 0, states, False)


def either(branches: Sequence[Part], simple: Sequence[Masks], has_twins: bool) -> Part:
    """One of several branches; `simple` are those that are plain sequences."""
    if len(branches) == 1:
        return branches[0]
    lengths = {one.length for one in branches}
    first = tail = single = states = 0
    is_open = has_twins or sum(one.nullable for one in branches) > 1
    for one in branches:
        is_open = is_open or one.is_open or bool(single & one.single)
        first, tail, single, states = first | one.first, tail | one.tail, single | one.single, states + one.states
    collide, further = _each_with_each(simple) if len(simple) <= _PAIRWISE else _with_neighbours(simple)
    nullable = any(one.nullable for one in branches)
    return Part(
        lengths.pop() if len(lengths) == 1 else None,
        nullable,
        first,
        tail | further | (first if nullable else 0),  # (a|) is a?
        single,
        min(states + 1, MANY),
        is_open or collide,
    )


def _each_with_each(simple: Sequence[Masks]) -> tuple[bool, int]:
    """Do two branches match the same text? And with what could a branch go on, since a longer one begins like it?"""
    collide, further = False, 0
    for one, other in combinations(simple, 2):
        short, long = (one, other) if len(one) <= len(other) else (other, one)
        if short and all(a & b for a, b in zip(short, long, strict=False)):
            collide = collide or len(short) == len(long)
            further |= long[len(short)] if len(long) > len(short) else 0
    return collide, further


def _with_neighbours(simple: Sequence[Masks]) -> tuple[bool, int]:
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
