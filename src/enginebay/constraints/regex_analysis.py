"""Static properties of regex parts, and how they compose. Pure.

An unbounded repeat explodes when one text splits into iterations in many ways: (a+)+, (a|a)*, (\\w+\\s?)*. To detect it,
each part carries the characters it can start with (`first`) and those with which it could have continued (`tail`). When
an iteration's tail overlaps the next one's first, the boundary is ambiguous. Iterations with a clear boundary, such as
(\\w+,)*, pass. The check is heuristic: it may refuse a harmless pattern and detects only common shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

COUNT_CAP = 10**12  # counts saturate here
_MAX_PAIRWISE_BRANCHES = 32  # up to this many branches are compared pairwise; more are compared in sorted order

Masks = tuple[int, ...]  # a literal sequence of characters and classes


class RegexPart(NamedTuple):
    length: int | None  # of its matches; None: it varies
    nullable: bool
    first: int
    tail: int
    single: int  # the characters that are a complete match on their own
    states: int
    is_ambiguous: bool  # one text can match in several ways: must not be repeated without bound


EMPTY = RegexPart(0, True, 0, 0, 0, 0, False)


def match_char(mask: int) -> RegexPart:
    return RegexPart(1, False, mask, 0, mask, 1, False)


def concatenate(left: RegexPart, right: RegexPart) -> RegexPart:
    """Return `left` followed by `right`. An overlap with a fixed-length `right` only moves the boundary."""
    overlaps = bool(left.tail & right.first)
    extends = right.nullable or (overlaps and right.length is not None)
    return RegexPart(
        None if left.length is None or right.length is None else min(left.length + right.length, COUNT_CAP),
        left.nullable and right.nullable,
        left.first | (right.first if left.nullable else 0),
        right.tail | (left.tail if extends else 0),
        (left.single if right.nullable else 0) | (right.single if left.nullable else 0),
        min(left.states + right.states, COUNT_CAP),
        left.is_ambiguous or right.is_ambiguous or (overlaps and right.length is None),
    )


def repeat_bounded(part: RegexPart, low: int, high: int) -> RegexPart:
    """Return `part` repeated `low` to `high` times; `high` is at least 1."""
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
    """Return `part` repeated at least `low` times. Its iterations must have clear boundaries and never be empty."""
    states = min(part.states * max(low, 1), COUNT_CAP)
    return RegexPart(None, low == 0, part.first, part.tail | part.first, part.single if low < 2 else 0, states, False)


def alternate(branches: Sequence[RegexPart], simple: Sequence[Masks], has_duplicates: bool) -> RegexPart:
    """Return an alternation of branches; `simple` are those that are literal sequences."""
    if len(branches) == 1:
        return branches[0]
    lengths = {branch.length for branch in branches}
    first = tail = single = states = 0
    is_ambiguous = has_duplicates or sum(branch.nullable for branch in branches) > 1
    for branch in branches:
        is_ambiguous = is_ambiguous or branch.is_ambiguous or bool(single & branch.single)
        first, tail = first | branch.first, tail | branch.tail
        single, states = single | branch.single, states + branch.states
    collide, extension = _compare_pairwise(simple) if len(simple) <= _MAX_PAIRWISE_BRANCHES else _compare_sorted(simple)
    nullable = any(branch.nullable for branch in branches)
    return RegexPart(
        lengths.pop() if len(lengths) == 1 else None,
        nullable,
        first,
        tail | extension | (first if nullable else 0),  # (a|) is a?
        single,
        min(states + 1, COUNT_CAP),
        is_ambiguous or collide,
    )


def _compare_pairwise(simple: Sequence[Masks]) -> tuple[bool, int]:
    """Return whether two branches match the same text, and the characters that extend a branch to a longer one."""
    collide, extension = False, 0
    for left, right in combinations(simple, 2):
        short, long = (left, right) if len(left) <= len(right) else (right, left)
        if short and all(a & b for a, b in zip(short, long, strict=False)):
            collide = collide or len(short) == len(long)
            extension |= long[len(short)] if len(long) > len(short) else 0
    return collide, extension


def _compare_sorted(simple: Sequence[Masks]) -> tuple[bool, int]:
    """Do the same for many branches, but detect only equal prefixes, not overlapping ones."""
    collide, extension = False, 0
    prefixes: list[Masks] = []  # of the current branch, each a prefix of the next
    for branch in sorted(filter(None, simple)):
        while prefixes and branch[: len(prefixes[-1])] != prefixes[-1]:
            prefixes.pop()
        if prefixes:
            collide = collide or branch == prefixes[-1]
            extension |= branch[len(prefixes[-1])] if len(branch) > len(prefixes[-1]) else 0
        prefixes.append(branch)
    return collide, extension
