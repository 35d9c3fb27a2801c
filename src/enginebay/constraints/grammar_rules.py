"""Flattens a grammar to plain rules, as llama.cpp does, and finds left recursion. Pure.

A flat rule has alternatives; an alternative is a sequence of terminals and numbers of rules. Groups and repeats become
rules of their own: `a{2,3}` is `a a r` with `r ::= a |`, and `a*` is `r` with `r ::= a r |`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from enginebay.constraints.char_ranges import CharRanges, drop_surrogates, find_char_ranges, is_matchable
from enginebay.constraints.gbnf_syntax import (
    GrammarFault,
    GrammarGroup,
    GrammarNode,
    GrammarRepeat,
    GrammarRules,
    RuleRef,
    TokenRef,
)
from enginebay.constraints.regex_syntax import Char, CharClass

ROOT = "root"

FlatSymbol = CharRanges | TokenRef | int  # an int is a rule
Alternative = tuple[FlatSymbol, ...]


@dataclass(frozen=True, slots=True)
class FlatGrammar:
    rules: Sequence[Sequence[Alternative]]
    names: Sequence[str]  # of the rule each comes from
    first_made: int  # rules from here on were made for groups and repeats
    root: int


def flatten_rules(rules: GrammarRules, max_symbols: int) -> FlatGrammar:
    """Return the flat rules. Raises `GrammarFault` if `root` is missing, a reference leads nowhere, or it gets too large."""
    if ROOT not in rules:
        raise GrammarFault("the grammar has no rule 'root'", "name the start rule root")
    return _RuleFlattener(rules, max_symbols).flatten()


class _RuleFlattener:
    def __init__(self, rules: GrammarRules, max_symbols: int) -> None:
        self.source = rules
        self.numbers = {name: number for number, name in enumerate(rules)}
        self.names = list(rules)
        self.flat: list[Sequence[Alternative]] = [()] * len(rules)
        self.max_symbols = max_symbols
        self.symbols = 0
        self.name = ""  # of the rule being flattened

    def flatten(self) -> FlatGrammar:
        for number, (name, group) in enumerate(self.source.items()):
            self.name = name
            self.flat[number] = [self.flatten_sequence(branch) for branch in group.branches]
        return FlatGrammar(self.flat, self.names, len(self.source), self.numbers[ROOT])

    def add_symbols(self, count: int) -> None:
        self.symbols += count
        if self.symbols > self.max_symbols:
            raise GrammarFault(
                f"the grammar has over {self.max_symbols} symbols, with repeats expanded",
                "use smaller repeat counts, especially in nested repeats",
                "grammar_symbols",
            )

    def add_rule(self, *alternatives: Alternative) -> int:
        self.flat.append(alternatives)
        self.names.append(self.name)
        return len(self.flat) - 1

    def flatten_sequence(self, nodes: Sequence[GrammarNode]) -> Alternative:
        return tuple(symbol for node in nodes for symbol in self.flatten_node(node))

    def flatten_node(self, node: GrammarNode) -> Alternative:
        if isinstance(node, GrammarRepeat):
            return self.flatten_repeat(node)
        if isinstance(node, GrammarGroup):
            branches = [self.flatten_sequence(branch) for branch in node.branches]
            return branches[0] if len(branches) == 1 else (self.add_rule(*branches),)
        self.add_symbols(1)
        if isinstance(node, RuleRef):
            if node.name not in self.numbers:
                raise GrammarFault(f"the grammar has no rule {node.name[:60]!r}", "define it, or correct the name")
            return (self.numbers[node.name],)
        return (node,) if isinstance(node, TokenRef) else (self.make_terminal(node),)

    def make_terminal(self, node: Char | CharClass) -> CharRanges:
        if isinstance(node, Char) and "\0" < node.char < "\ud800":  # most of them
            return ((ord(node.char), ord(node.char)),)
        ranges = find_char_ranges(node)
        assert ranges is not None  # a grammar has no Unicode properties
        if not is_matchable(ranges):
            raise GrammarFault(f"the rule {self.name[:60]!r} has a class that matches no text")
        return drop_surrogates(ranges)

    def flatten_repeat(self, repeat: GrammarRepeat) -> Alternative:
        sequence = self.flatten_node(repeat.node)
        low, high = repeat.low, repeat.high
        optional = 1 if high is None else high - low
        self.add_symbols(len(sequence) * (low + optional) + optional)
        if not optional:
            return sequence * low
        if high is None:
            tail = self.add_rule()
            self.flat[tail] = ((*sequence, tail), ())
        else:
            tail = self.add_rule(sequence, ())
            for _ in range(optional - 1):
                tail = self.add_rule((*sequence, tail), ())
        return (*sequence * low, tail)


def check_left_recursion(grammar: FlatGrammar) -> None:
    """Raise `GrammarFault` if a rule can begin with itself: no parser of this kind ends on it."""
    nullable = find_nullable(grammar)
    edges = [
        {ref for alternative in rule for ref in _iter_first_rules(alternative, nullable)} for rule in grammar.rules
    ]
    cycle = find_cycle(edges)
    if cycle is None:
        return
    name = grammar.names[cycle][:60]
    if cycle >= grammar.first_made:
        raise GrammarFault(
            f"the rule {name!r} has an unbounded repeat of something that can be empty",
            'repeat something that has at least one character: write "a"* instead of ("a"?)*',
        )
    raise GrammarFault(
        f"the rule {name!r} is left-recursive: it can begin with itself",
        'write list ::= item ("," item)* instead of list ::= list "," item | item',
    )


def _iter_first_rules(alternative: Alternative, nullable: Sequence[bool]) -> Iterator[int]:
    for symbol in alternative:
        if not isinstance(symbol, int):
            return
        yield symbol
        if not nullable[symbol]:
            return


def find_nullable(grammar: FlatGrammar) -> list[bool]:
    """Return which rules match the empty text, in linear time."""
    nullable = [False] * len(grammar.rules)
    users: list[list[tuple[int, int]]] = [[] for _ in grammar.rules]  # of a rule: the alternatives that hold it
    missing: list[int] = []  # by alternative: symbols that are not known to be nullable
    pending: list[int] = []
    for number, rule in enumerate(grammar.rules):
        for alternative in rule:
            for symbol in alternative:
                if isinstance(symbol, int):
                    users[symbol].append((number, len(missing)))
            missing.append(len(alternative))
            if not alternative:
                pending.append(number)
    while pending:
        number = pending.pop()
        if nullable[number]:
            continue
        nullable[number] = True
        for user, alternative_number in users[number]:
            missing[alternative_number] -= 1
            if not missing[alternative_number]:
                pending.append(user)
    return nullable


def find_cycle(edges: Sequence[set[int]]) -> int | None:
    """Return a node that lies on a cycle, or None."""
    done, open_ = [False] * len(edges), [False] * len(edges)
    for start in range(len(edges)):
        stack = [] if done[start] else [(start, iter(edges[start]))]
        while stack:
            node, following = stack[-1]
            open_[node] = True
            upcoming = next((other for other in following if not done[other]), None)
            if upcoming is None:
                stack.pop()
                open_[node], done[node] = False, True
            elif open_[upcoming]:
                return upcoming
            else:
                stack.append((upcoming, iter(edges[upcoming])))
    return None
