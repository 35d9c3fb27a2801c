"""Turns a grammar without recursion into one regex: what matches is the same, and engines match a regex in bounded time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from enginebay.constraints import regex_syntax as syntax
from enginebay.constraints.gbnf_syntax import (
    GrammarGroup,
    GrammarNode,
    GrammarRepeat,
    GrammarRules,
    RuleRef,
    TokenRef,
)
from enginebay.constraints.grammar_rules import ROOT

_MAX_DEPTH = 60  # of nested groups: engines parse them recursively
_MAX_NODES = 20_000


def to_regex(rules: GrammarRules) -> syntax.Group | None:
    """Return the regex tree of `root`; None if a rule refers to itself or to a token, or if the regex gets too large."""
    order = _sort_rules(rules)
    if order is None:
        return None
    inliner = _RuleInliner()
    for name in order:
        if not inliner.add(name, rules[name]):
            return None
    return inliner.groups[ROOT]


def _sort_rules(rules: GrammarRules) -> list[str] | None:
    """Return the rules that `root` needs, each after those it refers to; None if there is a cycle."""
    order: list[str] = []
    open_: set[str] = set()
    done: set[str] = set()
    stack: list[tuple[str, Iterator[str]]] = [(ROOT, _iter_references(rules[ROOT]))]
    while stack:
        name, references = stack[-1]
        open_.add(name)
        upcoming = next((other for other in references if other not in done), None)
        if upcoming is None:
            stack.pop()
            open_.discard(name)
            done.add(name)
            order.append(name)
        elif upcoming in open_:
            return None
        else:
            stack.append((upcoming, _iter_references(rules[upcoming])))
    return order


def _iter_references(node: GrammarNode) -> Iterator[str]:
    pending: list[GrammarNode] = [node]
    while pending:
        current = pending.pop()
        if isinstance(current, RuleRef):
            yield current.name
        elif isinstance(current, GrammarRepeat):
            pending.append(current.node)
        elif isinstance(current, GrammarGroup):
            pending.extend(member for branch in current.branches for member in branch)


class _RuleInliner:
    """Builds the tree of each rule from those of the rules it refers to. The trees share parts, so none is copied."""

    def __init__(self) -> None:
        self.groups: dict[str, syntax.Group] = {}
        self.sizes: dict[str, tuple[int, int]] = {}  # nodes and depth, with all references written out

    def add(self, name: str, group: GrammarGroup) -> bool:
        """Add a rule. Returns False if it cannot be part of a regex."""
        size = self.measure(group)
        if size is None or size[0] > _MAX_NODES or size[1] > _MAX_DEPTH:
            return False
        self.sizes[name] = size
        self.groups[name] = self.convert_group(group)
        return True

    def measure(self, node: GrammarNode) -> tuple[int, int] | None:
        if isinstance(node, RuleRef):
            return self.sizes[node.name]
        if isinstance(node, TokenRef):
            return None
        if not isinstance(node, GrammarGroup | GrammarRepeat):
            return 1, 0
        members: Sequence[GrammarNode] = (
            [node.node] if isinstance(node, GrammarRepeat) else [member for part in node.branches for member in part]
        )
        sizes = [self.measure(member) for member in members]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return None
        return 1 + sum(nodes for nodes, _ in known), 1 + max((depth for _, depth in known), default=0)

    def convert_group(self, group: GrammarGroup) -> syntax.Group:
        return syntax.Group(
            tuple(
                syntax.Sequence(tuple(map(self.convert, branch)), str(number))
                for number, branch in enumerate(group.branches)
            )
        )

    def convert(self, node: GrammarNode) -> syntax.Node:
        if isinstance(node, RuleRef):
            return self.groups[node.name]
        if isinstance(node, GrammarGroup):
            return self.convert_group(node)
        if isinstance(node, GrammarRepeat):
            return syntax.Repeat(self.convert(node.node), node.low, node.high, False, 0)
        assert not isinstance(node, TokenRef)
        return node
