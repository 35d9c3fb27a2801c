"""Random patterns, written as a regex or as a grammar, with a matcher of our own that no pattern makes slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.hostile.hostile_case import Choice, TextCheck

ALPHABET = "abcdefghij 0123456789"
_COUNTS = (0, 1, 1, 2, 3, 7, 30, 200)


@dataclass(frozen=True)
class Chars:
    """One of these characters."""

    chars: str


@dataclass(frozen=True)
class Joined:
    parts: Sequence[Pattern]


@dataclass(frozen=True)
class Either:
    parts: Sequence[Pattern]


@dataclass(frozen=True)
class Repeated:
    part: Pattern
    low: int
    high: int | None


Pattern = Chars | Joined | Either | Repeated


def draw_pattern(random: Random, depth: int = 5) -> Pattern:
    kind = random.choices(("chars", "joined", "either", "repeated"), (3, 3, 2, 3))[0] if depth else "chars"
    if kind == "chars":
        return Chars("".join(random.sample(ALPHABET, random.choice((1, 1, 2, 10)))))
    if kind == "repeated":
        low = random.choice(_COUNTS)
        high = random.choice((None, low, low + random.choice(_COUNTS)))
        return Repeated(draw_pattern(random, depth - 1), low, high)
    parts = [draw_pattern(random, depth - 1) for _ in range(random.choice((1, 2, 2, 3, 12)))]
    return Joined(parts) if kind == "joined" else Either(parts)


def write_regex(pattern: Pattern) -> str:
    if isinstance(pattern, Chars):
        return pattern.chars if len(pattern.chars) == 1 else f"[{pattern.chars}]"
    if isinstance(pattern, Joined):
        return "".join(f"(?:{write_regex(part)})" for part in pattern.parts)
    if isinstance(pattern, Either):
        return f"(?:{'|'.join(map(write_regex, pattern.parts))})"
    return f"(?:{write_regex(pattern.part)}){_write_count(pattern)}"


def write_grammar(pattern: Pattern) -> str:
    return f"root ::= {_write_rule(pattern)}"


def _write_rule(pattern: Pattern) -> str:
    if isinstance(pattern, Chars):
        return f"[{pattern.chars}]"
    if isinstance(pattern, Joined):
        return f"({' '.join(map(_write_rule, pattern.parts))})"
    if isinstance(pattern, Either):
        return f"({' | '.join(map(_write_rule, pattern.parts))})"
    return f"({_write_rule(pattern.part)}){_write_count(pattern)}"


def _write_count(pattern: Repeated) -> str:
    if (pattern.low, pattern.high) in ((0, None), (1, None), (0, 1)):
        return {(0, None): "*", (1, None): "+", (0, 1): "?"}[pattern.low, pattern.high]
    return f"{{{pattern.low},{'' if pattern.high is None else pattern.high}}}"


def find_ends(pattern: Pattern, text: str, starts: frozenset[int]) -> frozenset[int]:
    """Where a match that begins at one of `starts` may end."""
    if isinstance(pattern, Chars):
        return frozenset(start + 1 for start in starts if start < len(text) and text[start] in pattern.chars)
    if isinstance(pattern, Joined):
        for part in pattern.parts:
            starts = find_ends(part, text, starts)
        return starts
    if isinstance(pattern, Either):
        return frozenset().union(*(find_ends(part, text, starts) for part in pattern.parts))
    return _find_repeated_ends(pattern, text, starts)


def _find_repeated_ends(pattern: Repeated, text: str, starts: frozenset[int]) -> frozenset[int]:
    for _ in range(pattern.low):
        starts = find_ends(pattern.part, text, starts)
        if not starts:
            return starts
    ends, left = starts, pattern.high
    while starts and (left is None or left > pattern.low):
        starts = find_ends(pattern.part, text, starts) - ends
        ends |= starts
        left = None if left is None else left - 1
    return ends


def check_pattern(pattern: Pattern) -> TextCheck:
    """A complete answer matches."""

    def check(choice: Choice) -> None:
        if choice.finish_reason != "length":
            ends = find_ends(pattern, choice.text, frozenset((0,)))
            assert len(choice.text) in ends, f"does not match: {choice.text[:200]!r}"

    return check
