"""Estimates how large a constraint is once compiled, to tell the small ones, which compile in a moment. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from enginebay.constraints import regex_syntax as syntax
from enginebay.constraints.gbnf_syntax import (
    GrammarFault,
    GrammarGroup,
    GrammarNode,
    GrammarRepeat,
    GrammarRules,
    parse_gbnf,
)
from enginebay.constraints.grammar_regex import to_regex
from enginebay.constraints.grammar_rules import flatten_rules
from enginebay.constraints.regex_limits import analyze_tree
from enginebay.constraints.regex_syntax import Char
from enginebay.contract import Guided
from enginebay.errors import RequestError

LARGE = 10**9  # cannot be told, or a text can split into repetitions in many ways

_MAX_GRAMMAR_DEPTH, _MAX_SYMBOLS = 200, 100_000
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BYTES_PER_STATE = 8
_MAX_LENGTH_STATES = 500  # from a few hundred characters on, the length of a text costs xgrammar nothing more


def estimate_states(guided: Guided) -> int:
    """Return about the number of states of the automaton, or `LARGE`. Does not raise: the engine rejects what is invalid."""
    try:
        return _estimate(guided)
    except (ValueError, OverflowError, RecursionError):
        return LARGE


def _estimate(guided: Guided) -> int:
    if guided.regex is not None:
        return _count_regex_states(syntax.parse_regex(guided.regex))
    if guided.choice is not None:
        return sum(map(len, guided.choice)) // _BYTES_PER_STATE
    if guided.grammar is not None:
        return _count_grammar_symbols(guided.grammar)
    return _count_schema_states(guided.json or "")


def _count_regex_states(regex: syntax.Group) -> int:
    try:
        part = analyze_tree(regex, "guided_regex")
    except RequestError:
        return LARGE
    return LARGE if part.is_ambiguous else part.states


def _count_grammar_symbols(text: str) -> int:
    try:
        rules = parse_gbnf(text, _MAX_GRAMMAR_DEPTH)
        flat = flatten_rules(rules, _MAX_SYMBOLS)
    except GrammarFault:
        return LARGE
    regex = to_regex(rules)
    if regex is not None:
        return _count_regex_states(regex)
    if any(_repeats_group(repeat) for repeat in _iter_repeats(rules)):
        return LARGE
    return sum(len(alternative) + 1 for rule in flat.rules for alternative in rule)


def _iter_repeats(rules: GrammarRules) -> Iterator[GrammarRepeat]:
    pending: list[GrammarNode] = list(rules.values())
    while pending:
        node = pending.pop()
        if isinstance(node, GrammarRepeat):
            yield node
            pending.append(node.node)
        elif isinstance(node, GrammarGroup):
            pending.extend(member for branch in node.branches for member in branch)


def _repeats_group(repeat: GrammarRepeat) -> bool:
    """Return whether it repeats more than a text or a class: then a text may split into repetitions in many ways."""
    node = repeat.node
    if not isinstance(node, GrammarGroup) or (repeat.high or 0) <= 1:
        return False
    return not (len(node.branches) == 1 and all(isinstance(member, Char) for member in node.branches[0]))


def _count_schema_states(text: str) -> int:
    """Add up the text, the counts and the patterns of a schema. A schema used in many places counts once."""
    total = len(text) // _BYTES_PER_STATE
    pending: list[Any] = [json.loads(text)]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            total += sum(_count(name, value[name]) for name in _COUNTS if isinstance(value.get(name), int | float))
            pattern = value.get("pattern")
            total += _count_regex_states(syntax.parse_regex(pattern)) if isinstance(pattern, str) else 0
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return min(total, LARGE)


def _count(name: str, value: float) -> int:
    return min(int(value), _MAX_LENGTH_STATES) if name.endswith("Length") else int(value)
