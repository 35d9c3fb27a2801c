"""Translate a regular expression to GBNF, llama.cpp's grammar language. The whole output must match.

llama.cpp does not support regular expressions. Lazy and greedy repeats are equivalent here, since only the set of
matching texts matters. Constructs without a counterpart are rejected.
"""

from __future__ import annotations

from collections.abc import Iterable

from enginebay.constraints import regex_syntax as syntax
from enginebay.errors import Unsupported

_CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": " \\t\\n\\r\\x0B\\x0C"}
_SHORTHANDS = {".": "^\\n", **_CLASSES, **{letter.upper(): f"^{chars}" for letter, chars in _CLASSES.items()}}
_CONTROLS = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_REPEATS = {(0, None): "*", (1, None): "+", (0, 1): "?"}
_PARAM = "guided_regex"


def regex_to_gbnf(pattern: str) -> str:
    """Return a grammar for the texts that `pattern` fully matches."""
    return f"root ::= {_write_branches(_strip_end_anchors(syntax.parse_regex(pattern)))}\n"


def to_terminal(text: str) -> str:
    """Return a GBNF terminal for exactly this text."""
    return '"' + "".join(map(_escape_char, text)) + '"'


def choice_to_gbnf(choices: tuple[str, ...]) -> str:
    """Return a grammar for exactly one of these texts."""
    return f"root ::= {' | '.join(to_terminal(choice) for choice in choices)}\n"


def _strip_end_anchors(regex: syntax.Group) -> list[tuple[syntax.Node, ...]]:
    """Return the branches without `^` and `$` at the ends: the whole output always has to match."""
    branches = [branch.nodes for branch in regex.branches]
    for start in ("^", "\\A"):
        if branches[0][:1] == (syntax.Anchor(start),):
            branches[0] = branches[0][1:]
    if branches[-1][-1:] in ((syntax.Anchor("$"),), (syntax.Anchor("\\Z"),)):
        branches[-1] = branches[-1][:-1]
    return branches


def _escape_char(char: str) -> str:
    """Escape one character for a terminal or a class. GBNF has no escape for '^' and '-', so they become hex."""
    code = ord(char)
    if char in '\\"[]':
        return "\\" + char
    if 0x20 <= code < 0x7F and char not in "^-":
        return char
    if code <= 0xFF:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def _write_branches(branches: Iterable[tuple[syntax.Node, ...]]) -> str:
    return " | ".join(" ".join(map(_write_node, nodes)) or '""' for nodes in branches)


def _write_node(node: syntax.Node) -> str:
    if isinstance(node, syntax.Group):
        return f"({_write_branches(branch.nodes for branch in node.branches)})"
    if isinstance(node, syntax.Repeat):
        return _write_node(node.node) + _write_count(node.low, node.high)
    if isinstance(node, syntax.CharClass):
        return f"[{'^' * node.negated}{''.join(map(_write_class_item, node.items))}]"
    if isinstance(node, syntax.Shorthand) and node.letter in _SHORTHANDS:
        return f"[{_SHORTHANDS[node.letter]}]"
    if isinstance(node, syntax.Char):
        return f'"{_write_class_item(node)}"'
    if isinstance(node, syntax.Fault):
        raise node.to_error(_PARAM)
    if isinstance(node, syntax.Anchor) and node.text in "^$":
        raise _make_unsupported(f"'{node.text}' inside the pattern", "anchors only at the start and the end")
    name = node.text if isinstance(node, syntax.Anchor) else f"\\{node.letter}"
    raise _make_unsupported(f"'{name}'", "explicit characters")


def _write_class_item(item: syntax.ClassItem) -> str:
    if isinstance(item, syntax.Char):
        return _CONTROLS.get(item.char) or _escape_char(item.char)
    if isinstance(item, syntax.CharRange):
        return f"{_write_class_item(syntax.Char(item.low))}-{_write_class_item(syntax.Char(item.high))}"
    if item.letter in _CLASSES:
        return _CLASSES[item.letter]
    raise _make_unsupported(f"'\\{item.letter}' inside '[...]'", "a separate class")


def _write_count(low: int, high: int | None) -> str:
    if (low, high) in _REPEATS:
        return _REPEATS[low, high]
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"


def _make_unsupported(what: str, instead: str) -> Unsupported:
    return Unsupported(f"llamacpp does not support a regex with {what}", f"use {instead}", param=_PARAM)
