"""Follows a grammar as llama.cpp does, and finds texts that it could go on from in too many ways. Pure.

A parser of this kind keeps a set of stacks: one for each way to go on. The time of a step grows with their number, and
with the number of paths that lead to them, since those of one token are not merged. A search over short texts, always
from the largest set that it has seen, finds grammars where either explodes. It spends a fixed number of steps, so a
grammar that explodes only in a long and unusual text may pass.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from enginebay.constraints.char_ranges import CharRanges
from enginebay.constraints.grammar_rules import FlatGrammar, FlatSymbol

_MAX_STEPS = 12_000  # some ten milliseconds
_TOKEN_CHARS = 16  # the length of long tokens
_MAX_CHARS_PER_SET = 6
_MAX_TOKENS_PER_SET = 3
_PATHS_PER_STACK = 32  # along characters that few tokens have; along others, one
_WIDE = 16  # a class with so many characters matches many tokens
_EMPTY_STACK = 0

StackSet = frozenset[int]


class TooAmbiguous(Exception):
    """The grammar can go on in more ways than allowed."""


class _StepsSpent(Exception):
    pass


def check_ambiguity(grammar: FlatGrammar, max_stacks: int) -> None:
    """Raise `TooAmbiguous` if a short text leaves more than `max_stacks` stacks, or too many paths to them."""
    parser = _StackParser(grammar, max_stacks)
    try:
        _search(parser)
    except _StepsSpent:
        return


def _search(parser: _StackParser) -> None:
    start = parser.start()
    parser.check_stacks(start)
    seen = {start}
    order = 0
    queue: list[tuple[int, int, StackSet]] = [(-len(start), order, start)]
    while queue:
        _, _, stacks = heapq.heappop(queue)
        parser.follow_tokens(stacks)
        for char in parser.pick_chars(stacks):
            following = parser.accept(stacks, char)
            if following and following not in seen:
                seen.add(following)
                order += 1
                heapq.heappush(queue, (-len(following), order, following))


class _StackParser:
    """Stacks are numbered: each is a position on top of another stack."""

    def __init__(self, grammar: FlatGrammar, max_stacks: int) -> None:
        self.max_stacks = max_stacks
        self.steps = 0
        self.symbols: list[FlatSymbol | None] = []  # by position; None ends an alternative
        self.starts: list[list[int]] = []  # by rule: the positions where its alternatives begin
        for rule in grammar.rules:
            self.starts.append([self.add_alternative(alternative) for alternative in rule])
        self.wide_positions = {at for at, symbol in enumerate(self.symbols) if _is_wide(symbol)}
        self.root = grammar.root
        self.stacks: list[tuple[int, int]] = [(-1, -1)]  # by number: position and the stack below
        self.numbers: dict[tuple[int, int], int] = {}
        self.advanced: dict[int, tuple[int, ...]] = {}

    def add_alternative(self, alternative: Sequence[FlatSymbol]) -> int:
        start = len(self.symbols)
        self.symbols += (*alternative, None)
        return start

    def start(self) -> StackSet:
        return frozenset(
            stack for position in self.starts[self.root] for stack in self.advance(self.push(position, _EMPTY_STACK))
        )

    def push(self, position: int, below: int) -> int:
        """Return the stack with this position on top; the one below if an alternative ends there."""
        if self.symbols[position] is None:
            return below
        number = self.numbers.setdefault((position, below), len(self.stacks))
        if number == len(self.stacks):
            self.stacks.append((position, below))
        return number

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > _MAX_STEPS:
            raise _StepsSpent

    def advance(self, stack: int) -> tuple[int, ...]:
        """Return the stacks with a terminal on top that this one leads to, and the empty one if the text may end."""
        known = self.advanced.get(stack)
        if known is None:
            known = self.advanced[stack] = tuple(self.iter_advanced(stack))
        return known

    def iter_advanced(self, stack: int) -> Iterator[int]:
        pending, seen = [stack], {stack}
        while pending:
            self.check_count(len(seen))
            self.spend(1)
            current = pending.pop()
            position, below = self.stacks[current]
            symbol = None if current == _EMPTY_STACK else self.symbols[position]
            if not isinstance(symbol, int):
                yield current
                continue
            after = self.push(position + 1, below)
            for begin in self.starts[symbol]:
                following = self.push(begin, after)
                if following not in seen:
                    seen.add(following)
                    pending.append(following)

    def check_count(self, seen: int) -> None:
        if seen > self.max_stacks * _PATHS_PER_STACK:
            raise TooAmbiguous

    def accept(self, stacks: StackSet, char: int) -> StackSet:
        return self.check_stacks(frozenset(new for stack in stacks for new in self.accept_char(stack, char)))

    def check_stacks(self, stacks: StackSet) -> StackSet:
        if len(stacks) > self.max_stacks:
            raise TooAmbiguous
        return stacks

    def accept_char(self, stack: int, char: int) -> tuple[int, ...]:
        self.spend(1)
        if stack == _EMPTY_STACK:
            return ()
        position, below = self.stacks[stack]
        return self.advance(self.push(position + 1, below)) if _matches(self.symbols[position], char) else ()

    def follow_tokens(self, stacks: StackSet) -> None:
        """Follow some long tokens and count the paths to each stack, which the parser does not merge within a token."""
        for char in self.pick_chars(stacks)[:_MAX_TOKENS_PER_SET]:
            self.follow_token(dict.fromkeys(stacks, 1), char, is_wide=False)
            self.follow_token(dict.fromkeys(stacks, 1), char, is_wide=True)

    def follow_token(self, paths: dict[int, int], char: int, is_wide: bool) -> None:
        """Follow one token, of wide classes only or of all: with this character, else the one that most paths accept."""
        limit = self.max_stacks * (1 if is_wide else _PATHS_PER_STACK)
        for _ in range(_TOKEN_CHARS):
            following = self.count_paths(paths, char, is_wide)
            if not following:
                options = self.pick_chars(frozenset(paths))[:1]
                following = self.count_paths(paths, options[0], is_wide) if options else {}
            if not following:
                return
            if sum(following.values()) > limit:
                raise TooAmbiguous
            paths = following

    def count_paths(self, paths: dict[int, int], char: int, is_wide: bool) -> dict[int, int]:
        following: dict[int, int] = {}
        for stack, count in paths.items():
            if is_wide and self.stacks[stack][0] not in self.wide_positions:
                continue
            for new in self.accept_char(stack, char):
                following[new] = following.get(new, 0) + count
        return following

    def pick_chars(self, stacks: StackSet) -> list[int]:
        """Return characters that the stacks treat differently, those first that most stacks accept."""
        tops = {self.symbols[self.stacks[stack][0]] for stack in stacks if stack != _EMPTY_STACK}
        terminals = [symbol for symbol in tops if isinstance(symbol, tuple)]
        options = {low for ranges in terminals for low, _ in ranges[:3]}
        accepted: dict[tuple[bool, ...], int] = {}
        for char in sorted(options)[:64]:
            self.spend(1 + len(terminals) // 8)
            accepted.setdefault(tuple(_matches(ranges, char) for ranges in terminals), char)
        ranked = sorted(accepted.items(), key=lambda item: -sum(item[0]))
        return [char for _, char in ranked[:_MAX_CHARS_PER_SET]]


def _matches(symbol: FlatSymbol | None, char: int) -> bool:
    ranges: CharRanges = symbol if isinstance(symbol, tuple) else ()
    return any(low <= char <= high for low, high in ranges)


def _is_wide(symbol: FlatSymbol | None) -> bool:
    return isinstance(symbol, tuple) and sum(high - low + 1 for low, high in symbol) >= _WIDE
