"""Estimates how large a constraint is once compiled, to tell the small ones, which compile in a moment. Pure."""

from __future__ import annotations

import json
from typing import Any

from enginebay.constraints import regex_syntax as syntax
from enginebay.constraints.gbnf_syntax import GrammarFault, parse_gbnf
from enginebay.constraints.grammar_rules import flatten_rules
from enginebay.contract import Guided

_LARGE = 10**9
_MAX_GRAMMAR_DEPTH, _MAX_SYMBOLS = 200, 100_000
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_CHARS_PER_STATE = 8


def estimate_states(guided: Guided) -> int:
    """Return about the number of states of the automaton; a large number if it cannot be told."""
    if guided.regex is not None:
        return count_regex_states(syntax.parse_regex(guided.regex))
    if guided.choice is not None:
        return sum(map(len, guided.choice))
    if guided.grammar is not None:
        return _count_grammar_symbols(guided.grammar)
    return _count_schema_states(guided.json or "")


def count_regex_states(node: syntax.Node) -> int:
    if isinstance(node, syntax.Group):
        return sum(count_regex_states(part) for branch in node.branches for part in branch.nodes)
    if isinstance(node, syntax.Repeat):
        times = node.low + 1 if node.high is None else node.high
        return min(count_regex_states(node.node) * times, _LARGE)
    return 1


def _count_grammar_symbols(text: str) -> int:
    try:
        flat = flatten_rules(parse_gbnf(text, _MAX_GRAMMAR_DEPTH), _MAX_SYMBOLS)
    except GrammarFault:
        return _LARGE
    return sum(len(alternative) + 1 for rule in flat.rules for alternative in rule)


def _count_schema_states(text: str) -> int:
    """Add up the text, the counts and the patterns of a schema. A schema used in many places counts once."""
    total = len(text) // _CHARS_PER_STATE
    pending: list[Any] = [json.loads(text)]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            total += sum(int(value[name]) for name in _COUNTS if isinstance(value.get(name), int | float))
            pattern = value.get("pattern")
            total += count_regex_states(syntax.parse_regex(pattern)) if isinstance(pattern, str) else 0
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return min(total, _LARGE)
