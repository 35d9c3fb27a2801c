"""Writes a grammar in the form that every engine reads. Pure.

xgrammar rejects an empty alternative, as in `ws ::= | " "`, and llama.cpp a rule that spans lines or a name with an
underscore. What is written has neither.
"""

from __future__ import annotations

from enginebay.constraints.gbnf_syntax import (
    GrammarFault,
    GrammarGroup,
    GrammarNode,
    GrammarRepeat,
    GrammarRules,
    RuleRef,
    TokenRef,
    parse_gbnf,
)
from enginebay.constraints.grammar_rules import ROOT, flatten_rules
from enginebay.constraints.regex_syntax import Char, CharClass, CharRange, ClassItem

_REPEATS = {(0, None): "*", (1, None): "+", (0, 1): "?"}
_MAX_DEPTH, _MAX_SYMBOLS = 200, 1_000_000  # the server's limits are lower


def normalize_gbnf(text: str) -> str:
    """Return the grammar in that form; unchanged if it has an error, which the engine reports."""
    try:
        rules = parse_gbnf(text, _MAX_DEPTH)
        flatten_rules(rules, _MAX_SYMBOLS)
    except GrammarFault:
        return text
    return write_gbnf(rules)


def write_gbnf(rules: GrammarRules) -> str:
    writer = _GbnfWriter(rules)
    return "".join(f"{writer.names[name]} ::= {writer.write_branches(group)}\n" for name, group in rules.items())


class _GbnfWriter:
    def __init__(self, rules: GrammarRules) -> None:
        self.names = {name: name if name == ROOT else f"rule{number}" for number, name in enumerate(rules)}

    def write_branches(self, group: GrammarGroup) -> str:
        return " | ".join(self.write_sequence(branch) for branch in group.branches)

    def write_sequence(self, nodes: tuple[GrammarNode, ...]) -> str:
        return " ".join(map(self.write_node, nodes)) or '""'

    def write_node(self, node: GrammarNode) -> str:
        if isinstance(node, RuleRef):
            return self.names[node.name]
        if isinstance(node, TokenRef):
            return node.text
        if isinstance(node, GrammarRepeat):
            return self.write_node(node.node) + _write_count(node.low, node.high)
        if isinstance(node, GrammarGroup):
            if len(node.branches) == 1 and all(isinstance(member, Char) for member in node.branches[0]):
                text = "".join(_escape(member.char) for member in node.branches[0] if isinstance(member, Char))
                return f'"{text}"'
            return f"({self.write_branches(node)})"
        if isinstance(node, CharClass):
            return f"[{'^' * node.negated}{''.join(map(_write_class_item, node.items))}]"
        return f'"{_escape(node.char)}"'


def _write_class_item(item: ClassItem) -> str:
    if isinstance(item, CharRange):
        return f"{_escape(item.low)}-{_escape(item.high)}"
    assert isinstance(item, Char)
    return _escape(item.char)


def _escape(char: str) -> str:
    code = ord(char)
    if char.isascii() and (char.isalnum() or char in " _,.:;=<>(){}|/!?*+&%$#@'~`"):
        return char
    if code <= 0xFF:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def _write_count(low: int, high: int | None) -> str:
    if (low, high) in _REPEATS:
        return _REPEATS[low, high]
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
