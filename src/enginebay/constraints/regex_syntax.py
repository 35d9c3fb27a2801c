"""Parses a regex into a syntax tree. Visitors read the tree: one checks limits, one writes GBNF.

Python's `re._parser` does not fit: it is private and recursive, drops positions, merges branches, and reads another
dialect (lookaheads, but no `\\p{L}`, `(?<name>...)` or `\\z`); workers run with no libraries but their engine's.

Parsing takes linear time and never raises. It stops at the first fault and puts it into the tree as the last node, so
a visitor reports what it objects to in reading order. Groups nest at most `MAX_NESTING` deep, so visitors may recurse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from enginebay.errors import InvalidRequest, Unsupported

MAX_NESTING = 50  # nested groups: engines parse them recursively
_GROUP_KINDS = {
    "?=": "a lookahead", "?!": "a lookahead", "?<": "a lookbehind", "?P": "a backreference", "?(": "a conditional",
    "?>": "an atomic group", "?#": "a comment",
}  # fmt: skip
_ZERO_WIDTH = "bBAZz"
_SHORTHANDS = "dwsDWSpP"
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MAX_BOUND_CHARS = 64  # a longer brace is a literal


@dataclass(frozen=True, slots=True)
class Char:
    char: str


@dataclass(frozen=True, slots=True)
class Shorthand:
    """`.`, one of `\\d`, `\\w`, `\\s`, `\\D`, `\\W`, `\\S`, or a Unicode property `\\p{...}`, `\\P{...}`, by its letter."""

    letter: str


@dataclass(frozen=True, slots=True)
class CharRange:
    low: str
    high: str


ClassItem = Char | CharRange | Shorthand


@dataclass(frozen=True, slots=True)
class CharClass:
    items: tuple[ClassItem, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Anchor:
    """A zero-width assertion: `^`, `$`, `\\b`, `\\A` ..."""

    text: str


@dataclass(frozen=True, slots=True)
class Repeat:
    node: Node
    low: int
    high: int | None  # None: unbounded
    is_lazy: bool
    position: int


@dataclass(frozen=True, slots=True)
class Sequence:
    nodes: tuple[Node, ...]
    text: str  # its source


@dataclass(frozen=True, slots=True)
class Group:
    """One or more branches. The whole regex is a group too."""

    branches: tuple[Sequence, ...]


@dataclass(frozen=True, slots=True)
class Fault(Exception):
    """Where parsing stopped, and why."""

    message: str
    hint: str
    is_unsupported: bool = False

    def to_error(self, param: str) -> InvalidRequest | Unsupported:
        return (Unsupported if self.is_unsupported else InvalidRequest)(self.message, self.hint, param=param)


Node = Char | Shorthand | CharClass | Anchor | Repeat | Group | Fault


def parse_regex(pattern: str) -> Group:
    """Return the syntax tree of `pattern`. A `Fault` ends the tree of an invalid one."""
    return _RegexParser(pattern).parse()


@dataclass(slots=True)
class _OpenGroup:
    start: int
    branch_start: int
    branches: list[Sequence] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)  # of the current branch

    def end_branch(self, pattern: str, at: int) -> None:
        self.branches.append(Sequence(tuple(self.nodes), pattern[self.branch_start : at]))
        self.nodes, self.branch_start = [], at + 1


class _RegexParser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.groups = [_OpenGroup(0, 0)]

    def parse(self) -> Group:
        try:
            while self.at < len(self.pattern):
                self.parse_next()
            if len(self.groups) > 1:
                self.fail("an unclosed '('", self.groups[-1].start)
        except Fault as fault:
            self.groups[-1].nodes.append(fault.with_traceback(None))
        while len(self.groups) > 1:
            self.end_group()
        self.groups[0].end_branch(self.pattern, len(self.pattern))
        return Group(tuple(self.groups[0].branches))

    def parse_next(self) -> None:
        char = self.next_char()
        group = self.groups[-1]
        if char == "(":
            self.open_group()
        elif char == ")":
            if len(self.groups) == 1:
                self.fail("an unmatched ')'", self.at - 1)
            self.end_group()
        elif char == "|":
            group.end_branch(self.pattern, self.at - 1)
        elif char in "*+?" or (char == "{" and self.parse_bounds() is not None):
            self.parse_repeat(char)
        elif char in "^$":
            group.nodes.append(Anchor(char))
        elif char == "\\":
            group.nodes.append(self.parse_escape())
        else:
            group.nodes.append(self.parse_class() if char == "[" else Shorthand(char) if char == "." else Char(char))

    def open_group(self) -> None:
        start = self.at - 1
        if len(self.groups) > MAX_NESTING:
            raise Fault(f"the regex nests groups more than {MAX_NESTING} deep", "flatten the groups")
        if self.next_is("?"):
            self.skip_group_prefix()
        self.groups.append(_OpenGroup(start, self.at))

    def skip_group_prefix(self) -> None:
        """Skip `?:`, `?P<name>` and `?<name>`; refuse every other `(?`."""
        start = self.pattern[self.at : self.at + 3]
        if start.startswith("?:"):
            self.at += 2
        elif start == "?P<" or (start[:2] == "?<" and start not in ("?<=", "?<!")):
            opening = self.pattern.index("<", self.at)
            end = self.pattern.find(">", opening)
            if end < 0 or not self.pattern[opening + 1 : end].isidentifier():
                self.fail("a group without a valid name")
            self.at = end + 1
        else:
            self.refuse(f"{_GROUP_KINDS.get(start[:2], 'an inline flag')} '({start}'", "a plain group")

    def end_group(self) -> None:
        group = self.groups.pop()
        group.end_branch(self.pattern, self.at - 1)
        self.groups[-1].nodes.append(Group(tuple(group.branches)))

    def parse_repeat(self, char: str) -> None:
        position = self.at - 1
        low, high = _REPEATS.get(char) or self.take_bounds()
        nodes = self.groups[-1].nodes
        if not nodes:
            self.fail("a repeat with nothing to repeat", position)
        is_lazy = self.next_is("?")
        nodes.append(Repeat(nodes.pop(), low, high, is_lazy, position))
        if self.next_is("+"):
            self.refuse("a possessive repeat", "a plain repeat")
        self.at += is_lazy
        if self.pattern[self.at : self.at + 1] in ("*", "+", "?") or (self.next_is("{") and self.parse_bounds(1)):
            self.fail("two consecutive repeats")

    def parse_bounds(self, offset: int = 0) -> tuple[int, int | None, int] | None:
        """Parse `m,}`, `m}`, `,n}` or `m,n}`. Return low, high and the end, or None if the brace is a literal."""
        begin = self.at + offset
        end = self.pattern.find("}", begin, begin + _MAX_BOUND_CHARS)
        low, comma, high = self.pattern[begin : max(end, begin)].partition(",")
        if end < 0 or not (low or high) or not all(part.isascii() and part.isdigit() for part in (low, high) if part):
            return None
        return int(low or 0), int(high) if high else None if comma else int(low), end + 1

    def take_bounds(self) -> tuple[int, int | None]:
        bounds = self.parse_bounds()
        assert bounds is not None
        low, high, self.at = bounds
        if high is not None and low > high:
            self.fail(f"the invalid repeat {{{low},{high}}}")
        return low, high

    def parse_escape(self) -> Node:
        char = self.next_char()
        if char in _ZERO_WIDTH:
            return Anchor(f"\\{char}")
        if char in "123456789k":
            self.refuse(f"the backreference '\\{char}'", "a copy of the referenced part")
        return self.parse_escaped_char(char)

    def parse_escaped_char(self, char: str) -> Char | Shorthand:
        if char in "pP":
            end = self.pattern.find("}", self.at)
            if not self.next_is("{") or end < 0:
                self.fail(f"'\\{char}' without a property in braces")
            self.at = end + 1
        if char in _SHORTHANDS:
            return Shorthand(char)
        if char in _CONTROLS:
            return Char(_CONTROLS[char])
        if char in _HEX_DIGITS:
            return Char(self.parse_hex(char))
        if char.isalnum():
            self.refuse(f"the escape '\\{char}'", "literal characters")
        return Char(char)

    def parse_hex(self, kind: str) -> str:
        digits = self.pattern[self.at : self.at + _HEX_DIGITS[kind]]
        self.at += len(digits)
        try:
            return chr(int(digits, 16)) if len(digits) == _HEX_DIGITS[kind] and digits.isalnum() else chr(-1)
        except (ValueError, OverflowError):
            self.fail(f"the invalid escape '\\{kind}{digits}'")

    def parse_class(self) -> CharClass:
        start = self.at - 1
        negated = self.next_is("^")
        self.at += negated
        items: list[ClassItem] = []
        while not items or not self.next_is("]"):
            if self.at >= len(self.pattern):
                self.fail("an unclosed '['", start)
            self.parse_class_item(items)
        self.at += 1
        return CharClass(tuple(items), negated)

    def parse_class_item(self, items: list[ClassItem]) -> None:
        """Parse one character, one escaped class, or a range."""
        low = self.parse_class_char()
        if not isinstance(low, Char) or not self.next_is("-") or self.pattern[self.at + 1 : self.at + 2] in ("]", ""):
            items.append(low)
            return
        self.at += 1
        high = self.parse_class_char()
        if not isinstance(high, Char):
            items += (low, Char("-"), high)
        elif low.char > high.char:
            self.fail(f"the invalid range {low.char}-{high.char}")
        else:
            items.append(CharRange(low.char, high.char))

    def parse_class_char(self) -> Char | Shorthand:
        char = self.next_char()
        if char == "[" and self.next_is(":"):
            self.refuse("a POSIX class '[:'", "\\d, \\w, \\s or literal characters")
        if char != "\\":
            return Char(char)
        escaped = self.next_char()
        return Char("\b") if escaped == "b" else self.parse_escaped_char(escaped)

    def next_char(self) -> str:
        if self.at >= len(self.pattern):
            self.fail("a trailing backslash")
        self.at += 1
        return self.pattern[self.at - 1]

    def next_is(self, char: str) -> bool:
        return self.pattern[self.at : self.at + 1] == char

    def fail(self, problem: str, position: int | None = None) -> NoReturn:
        position = self.at if position is None else position
        raise Fault(f"the regex has {problem} at position {position}", "correct the regex")

    def refuse(self, feature: str, alternative: str) -> NoReturn:
        raise Fault(f"the regex uses {feature}, which is not supported", f"use {alternative} instead", True)
