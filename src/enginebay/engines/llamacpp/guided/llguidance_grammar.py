"""Write a constraint as a grammar for llguidance, which is inside llama.cpp: JSON schemas, regexes, choices. Pure.

llguidance matches a regex in bounded time and memory, however ambiguous it is. llama.cpp's own grammars do not; only a
grammar with recursion goes to them.

llguidance rejects an unknown `format`. In JSON Schema such a format is only an annotation, so it is dropped.
Whitespace is fixed, because a small model may otherwise write whitespace until it runs out of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from enginebay.constraints import regex_syntax as syntax
from enginebay.constraints.char_ranges import CharRanges, drop_surrogates, find_char_ranges
from enginebay.constraints.gbnf_syntax import GrammarFault, parse_gbnf
from enginebay.constraints.grammar_regex import to_regex
from enginebay.constraints.grammar_rules import flatten_rules
from enginebay.errors import Unsupported
from enginebay.util.json_schema_keywords import SCHEMA_MAP_KEYWORDS, VALUE_KEYWORDS

KNOWN_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"}
)  # tested with xllamacpp 2026.10.11549
SCHEMA_START = "start: %json "

_HEADER = "%llguidance {}\n"
_FORMATTING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MAX_DEPTH, _MAX_SYMBOLS = 200, 1_000_000  # the server's limits are lower
_PARAM = "guided_regex"

# JSON schemas


def write_schema(schema: Mapping[str, Any]) -> str:
    return f"{_HEADER}{SCHEMA_START}{json.dumps(schema)}"


def to_llguidance_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema for llguidance. `{}` means any object."""
    return {"x-guidance": _FORMATTING, **drop_unknown_formats(schema or {"type": "object"})}


def drop_unknown_formats(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy without unknown formats. Keeps a format that is not a string: the library rejects it."""
    return {key: _copy_keyword(key, value) for key, value in schema.items() if not _is_unknown_format(key, value)}


def _is_unknown_format(key: str, value: Any) -> bool:
    return key == "format" and isinstance(value, str) and value not in KNOWN_FORMATS


def _copy_keyword(key: str, value: Any) -> Any:
    """Copy a keyword's value. An unknown keyword may hold schemas too, since a `$ref` can point anywhere."""
    if key in VALUE_KEYWORDS:
        return value
    if key in SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
        return {name: _copy_value(schema) for name, schema in value.items()}
    return _copy_value(value)


def _copy_value(value: Any) -> Any:
    if isinstance(value, dict):
        return drop_unknown_formats(value)
    return [_copy_value(item) for item in value] if isinstance(value, list) else value


# Regexes, choices, and grammars without recursion


def write_regex(pattern: str) -> str:
    """Return a grammar for the texts that `pattern` fully matches."""
    return _write_start(_write_branches(_strip_end_anchors(syntax.parse_regex(pattern))))


def write_choices(choices: Sequence[str]) -> str:
    """Return a grammar for exactly one of these texts."""
    return _write_start("|".join("".join(map(_write_char, choice)) for choice in dict.fromkeys(choices)))


def write_grammar(text: str) -> str | None:
    """Return a grammar for the texts of a GBNF grammar; None if it has recursion or an error."""
    try:
        rules = parse_gbnf(text, _MAX_DEPTH)
        flatten_rules(rules, _MAX_SYMBOLS)
    except GrammarFault:
        return None
    regex = to_regex(rules)
    return None if regex is None else _write_start(_write_branches(branch.nodes for branch in regex.branches))


def _write_start(regex: str) -> str:
    return f"{_HEADER}start: /(?:{regex})/\n"


def _strip_end_anchors(regex: syntax.Group) -> list[tuple[syntax.Node, ...]]:
    """Return the branches without `^` and `$` at the ends: the whole output always has to match."""
    branches = [branch.nodes for branch in regex.branches]
    for start in ("^", "\\A"):
        if branches[0][:1] == (syntax.Anchor(start),):
            branches[0] = branches[0][1:]
    if branches[-1][-1:] in ((syntax.Anchor("$"),), (syntax.Anchor("\\Z"),)):
        branches[-1] = branches[-1][:-1]
    return branches


def _write_branches(branches: Iterable[tuple[syntax.Node, ...]]) -> str:
    return "|".join("".join(map(_write_node, nodes)) for nodes in branches)


def _write_node(node: syntax.Node) -> str:
    if isinstance(node, syntax.Group):
        return f"(?:{_write_branches(branch.nodes for branch in node.branches)})"
    if isinstance(node, syntax.Repeat):
        return _write_node(node.node) + _write_count(node.low, node.high)
    if isinstance(node, syntax.Char):
        return _write_char(node.char)
    if isinstance(node, syntax.Fault):
        raise node.to_error(_PARAM)
    if isinstance(node, syntax.Anchor):
        if node.text in "^$":
            raise _make_unsupported(f"'{node.text}' inside the pattern", "anchors only at the start and the end")
        raise _make_unsupported(f"'{node.text}'", "explicit characters")
    ranges = find_char_ranges(node)
    if ranges is None:
        raise _make_unsupported("'\\p'", "explicit characters")
    return _write_class(ranges)


def _write_char(char: str) -> str:
    return char if char.isascii() and char.isalnum() else _write_code(ord(char))


def _write_code(code: int) -> str:
    return f"\\x{{{code:X}}}"


def _write_class(ranges: CharRanges) -> str:
    """Write a class. No text holds a NUL or a surrogate."""
    pairs = [(max(low, 1), high) for low, high in drop_surrogates(ranges) if high > 0]
    return f"[{''.join(f'{_write_code(low)}-{_write_code(high)}' for low, high in pairs)}]"


def _write_count(low: int, high: int | None) -> str:
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
    if simple is not None:
        return simple
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"


def _make_unsupported(what: str, instead: str) -> Unsupported:
    return Unsupported(f"llamacpp does not support a regex with {what}", f"use {instead}", param=_PARAM)
