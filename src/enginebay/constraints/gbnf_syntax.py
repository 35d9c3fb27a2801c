"""Parses a GBNF grammar, the language of llama.cpp and xgrammar, into syntax trees: one per rule.

Takes linear time and no stack: groups nest at most `max_depth` deep, so visitors may recurse. Accepts what either engine
reads: rules may span lines, and names may have underscores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from enginebay.constraints.regex_syntax import Char, CharClass, CharRange

_TOKEN = re.compile(
    r"""(?P<blank>(?:[ \t\r\n]|#[^\r\n]*+)++)|(?P<name>[A-Za-z0-9_-]+)|(?P<define>::=)|(?P<open>[("\[])"""
    r"""|(?P<close>\))|(?P<bar>\|)|(?P<any>\.)|(?P<repeat>[*+?])|(?P<token>!?<[^<>\r\n]{1,200}>)"""
    r"""|\{[ \t]*+(?P<low>[0-9]{0,9})[ \t]*+(?P<comma>,?)[ \t]*+(?P<high>[0-9]{0,9})[ \t]*+\}"""
)
_DEFINE = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*+)*+::=")  # possessive: it must not try a comment in many ways
_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "b": "\b", "e": "\x1b", "0": "\0"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
ANY_CHAR = CharClass((CharRange("\0", chr(0x10FFFF)),), False)


@dataclass(frozen=True, slots=True)
class RuleRef:
    name: str


@dataclass(frozen=True, slots=True)
class TokenRef:
    """A token of the vocabulary, such as `<think>` or `<[12]>`: llama.cpp's own."""

    text: str


@dataclass(frozen=True, slots=True)
class GrammarRepeat:
    node: GrammarNode
    low: int
    high: int | None  # None: unbounded


@dataclass(frozen=True, slots=True)
class GrammarGroup:
    """One or more branches, each a sequence. A rule's right side is a group too; so is a text in quotes."""

    branches: tuple[tuple[GrammarNode, ...], ...]


GrammarNode = Char | CharClass | RuleRef | TokenRef | GrammarRepeat | GrammarGroup
GrammarRules = dict[str, GrammarGroup]


@dataclass(eq=False, slots=True)
class GrammarFault(Exception):
    """Why a text is no grammar. `limit` is the limit that it exceeds, if it is a matter of size."""

    message: str
    hint: str = "correct the grammar"
    limit: str = ""


def parse_gbnf(text: str, max_depth: int) -> GrammarRules:
    """Return the rules by name. Raises `GrammarFault`."""
    return _GbnfParser(text, max_depth).parse()


@dataclass(slots=True)
class _OpenGrammarGroup:
    start: int
    branches: list[tuple[GrammarNode, ...]] = field(default_factory=list)
    nodes: list[GrammarNode] = field(default_factory=list)  # of the current branch

    def end_branch(self) -> None:
        self.branches.append(tuple(self.nodes))
        self.nodes = []

    def close(self) -> GrammarGroup:
        self.end_branch()
        return GrammarGroup(tuple(self.branches))


class _GbnfParser:
    def __init__(self, text: str, max_depth: int) -> None:
        self.text = text
        self.max_depth = max_depth
        self.at = 0
        self.rules: GrammarRules = {}
        self.rule: str | None = None
        self.groups: list[_OpenGrammarGroup] = []

    def parse(self) -> GrammarRules:
        while self.at < len(self.text):
            self.parse_next()
        self.end_rule()
        return self.rules

    def parse_next(self) -> None:
        start = self.at
        match = _TOKEN.match(self.text, start)
        if match is None:
            self.fail(f"an unexpected {self.text[start]!r}", start)
        self.at = match.end()
        kind = match.lastgroup
        if kind == "name":
            self.parse_name(match["name"], start)
        elif kind == "define":
            self.fail("a '::=' without a name before it", start)
        elif kind != "blank":
            if self.rule is None:
                self.fail(f"{match[0][:20]!r} before the first rule", start)
            self.parse_part(kind, match, start)

    def parse_name(self, name: str, start: int) -> None:
        define = _DEFINE.match(self.text, self.at)
        if define is None and self.rule is None:
            raise GrammarFault(f"expected '::=' after {name[:40]!r} at {self.locate(start)}")
        if define is None:
            self.groups[-1].nodes.append(RuleRef(name))
            return
        self.end_rule()
        self.at = define.end()
        self.rule, self.groups = name, [_OpenGrammarGroup(start)]

    def end_rule(self) -> None:
        if self.rule is None:
            return
        if len(self.groups) > 1:
            self.fail("an unclosed '('", self.groups[-1].start)
        self.rules[self.rule] = self.groups.pop().close()
        self.rule = None

    def parse_part(self, kind: str | None, match: re.Match[str], start: int) -> None:
        nodes = self.groups[-1].nodes
        if kind == "open":
            self.parse_opening(match[0], start)
        elif kind == "close":
            self.close_group(start)
        elif kind == "bar":
            self.groups[-1].end_branch()
        elif kind == "any":
            nodes.append(ANY_CHAR)
        elif kind == "token":
            nodes.append(TokenRef(match["token"]))
        elif kind == "repeat":
            self.add_repeat(*_REPEATS[match["repeat"]], start)
        else:
            self.add_counted_repeat(match, start)

    def parse_opening(self, char: str, start: int) -> None:
        if char == '"':
            self.groups[-1].nodes.append(self.parse_string(start))
        elif char == "[":
            self.groups[-1].nodes.append(self.parse_class(start))
        else:
            if len(self.groups) > self.max_depth:
                raise GrammarFault(
                    f"the grammar nests groups more than {self.max_depth} deep", "flatten the groups", "grammar_depth"
                )
            self.groups.append(_OpenGrammarGroup(start))

    def close_group(self, start: int) -> None:
        if len(self.groups) == 1:
            self.fail("an unmatched ')'", start)
        group = self.groups.pop().close()
        self.groups[-1].nodes.append(group)

    def add_counted_repeat(self, match: re.Match[str], start: int) -> None:
        low, high = match["low"], match["high"]
        if not (low or high) or (high and not match["comma"]):
            self.fail(f"the invalid repeat {match[0][:40]!r}", start)
        self.add_repeat(int(low or 0), int(high) if high else None if match["comma"] else int(low), start)

    def add_repeat(self, low: int, high: int | None, start: int) -> None:
        nodes = self.groups[-1].nodes
        if not nodes:
            self.fail("a repeat with nothing to repeat", start)
        if isinstance(nodes[-1], GrammarRepeat):
            self.fail("two consecutive repeats", start)
        if high is not None and low > high:
            self.fail(f"the invalid repeat {{{low},{high}}}", start)
        nodes.append(GrammarRepeat(nodes.pop(), low, high))

    def parse_string(self, start: int) -> GrammarGroup:
        chars: list[GrammarNode] = []
        while self.peek(start, "a text") != '"':
            char = self.parse_char()
            if char == "\0":
                self.fail("a NUL character", start)
            chars.append(Char(char))
        self.at += 1
        return GrammarGroup((tuple(chars),))

    def parse_class(self, start: int) -> CharClass:
        negated = self.peek(start, "a '['") == "^"
        self.at += negated
        items: list[Char | CharRange] = []
        while self.peek(start, "a '['") != "]":
            low = self.parse_char()
            if self.text[self.at : self.at + 1] != "-" or self.text[self.at + 1 : self.at + 2] in ("]", ""):
                items.append(Char(low))
                continue
            self.at += 1
            high = self.parse_char()
            if low > high:
                self.fail(f"the invalid range {low!r} to {high!r}", start)
            items.append(CharRange(low, high))
        self.at += 1
        return CharClass(tuple(items), negated)

    def parse_char(self) -> str:
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return char
        escaped = self.text[self.at : self.at + 1]
        self.at += 1
        if escaped in _HEX_DIGITS:
            return self.parse_hex(_HEX_DIGITS[escaped])
        if escaped in _CONTROLS:
            return _CONTROLS[escaped]
        if not escaped or escaped.isalnum() or escaped.isspace():
            self.fail(f"the unknown escape '\\{escaped}'", self.at - 2)
        return escaped

    def parse_hex(self, size: int) -> str:
        digits = self.text[self.at : self.at + size]
        self.at += size
        try:
            return chr(int(digits, 16)) if len(digits) == size and digits.isalnum() else chr(-1)
        except (ValueError, OverflowError):
            self.fail(f"the invalid escape with {digits[:8]!r}", self.at - size)

    def peek(self, start: int, opened: str) -> str:
        if self.at >= len(self.text):
            self.fail(f"{opened} that does not end", start)
        return self.text[self.at]

    def fail(self, problem: str, position: int) -> NoReturn:
        raise GrammarFault(f"the grammar has {problem} at {self.locate(position)}")

    def locate(self, position: int) -> str:
        line_start = self.text.rfind("\n", 0, position) + 1
        return f"line {self.text.count(chr(10), 0, position) + 1}, column {position - line_start + 1}"
