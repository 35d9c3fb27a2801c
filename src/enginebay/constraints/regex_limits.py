"""Checks that a regex is safe to compile: length, syntax, automaton size, and repeats that explode.

One pass with a stack of open groups: linear time, no recursion. Engines themselves refuse what only they do not
support (word boundaries, anchors inside a pattern, \\p{...}).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from enginebay.constraints.regex_analysis import (
    COUNT_CAP,
    EMPTY,
    Masks,
    RegexPart,
    alternate,
    concatenate,
    match_char,
    repeat_bounded,
    repeat_unbounded,
)
from enginebay.constraints.regex_charsets import (
    ALL_CHARS,
    ANY_BUT_NEWLINE,
    ESCAPED_CLASSES,
    make_char_bit,
    make_range_bits,
)
from enginebay.errors import InvalidRequest, Unsupported
from enginebay.util.limit_errors import format_limit_hint

MAX_NESTING = 50  # nested groups: engines parse them recursively
_GROUP_KINDS = {
    "?=": "a lookahead", "?!": "a lookahead", "?<": "a lookbehind", "?P": "a backreference", "?(": "a conditional",
    "?>": "an atomic group", "?#": "a comment",
}  # fmt: skip
_MAX_EXPANDED_CHARS = 64  # an exact repeat up to this length stays a literal sequence
_ZERO_WIDTH = "bBAZz"
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


class ConstraintLimits(Protocol):
    """The limits that apply to constraints."""

    @property
    def regex_chars(self) -> int: ...

    @property
    def regex_states(self) -> int: ...

    @property
    def choices(self) -> int: ...

    @property
    def schema_depth(self) -> int: ...

    @property
    def schema_nodes(self) -> int: ...

    @property
    def schema_bytes(self) -> int: ...


def check_regex(pattern: object, limits: ConstraintLimits, param: str) -> None:
    """Raise `InvalidRequest` or `Unsupported` if this regex must not reach an engine."""
    count_states(pattern, limits, param)


def count_states(pattern: object, limits: ConstraintLimits, param: str) -> int:
    """Check like `check_regex`, and return the approximate number of automaton states."""
    if not isinstance(pattern, str):
        raise InvalidRequest("the regex is not a string", "send the regex as a string", param=param)
    if len(pattern) > limits.regex_chars:
        raise InvalidRequest(
            f"the regex is {len(pattern)} characters long; the maximum is {limits.regex_chars}",
            format_limit_hint("regex_chars", "shorten it"),
            param=param,
        )
    states = _RegexScanner(pattern, param).scan().states
    if states > limits.regex_states:
        number = f"{states}" if states < COUNT_CAP else f"over {COUNT_CAP}"
        raise InvalidRequest(
            f"the regex needs about {number} states; the maximum is {limits.regex_states}",
            format_limit_hint("regex_states", "use smaller repeat counts, especially in nested repeats"),
            param=param,
        )
    return states


@dataclass(slots=True)
class _OpenGroup:
    """The contents so far of a group that is still open."""

    start: int
    branch_start: int
    branches: list[RegexPart] = field(default_factory=list)
    branch_texts: set[str] = field(default_factory=set)
    has_duplicates: bool = False
    literal_branches: list[Masks] = field(default_factory=list)
    sequence: RegexPart = EMPTY  # of the current branch, without its last atom
    masks: list[int] | None = field(default_factory=list)  # `sequence` as literals; None: not a literal sequence
    last: RegexPart | None = None  # the last atom: a repeat may follow
    last_masks: Masks | None = None

    def add(self, part: RegexPart, masks: Masks | None) -> None:
        self.flush_last()
        self.last, self.last_masks = part, masks

    def flush_last(self) -> None:
        if self.last is None:
            return
        self.sequence = concatenate(self.sequence, self.last)
        if self.masks is not None and self.last_masks is not None:
            self.masks += self.last_masks
        else:
            self.masks = None
        self.last = None

    def end_branch(self, pattern: str, at: int) -> None:
        self.flush_last()
        text = pattern[self.branch_start : at]
        self.has_duplicates = self.has_duplicates or text in self.branch_texts
        self.branch_texts.add(text)
        self.branches.append(self.sequence)
        if self.masks is not None:
            self.literal_branches.append(tuple(self.masks))
        self.sequence, self.masks, self.branch_start = EMPTY, [], at + 1

    def build_part(self) -> tuple[RegexPart, Masks | None]:
        part = alternate(self.branches, self.literal_branches, self.has_duplicates)
        if len(self.literal_branches) < len(self.branches):
            return part, None
        if len(self.literal_branches) == 1:
            return part, self.literal_branches[0]
        return part, (part.first,) if all(len(branch) == 1 for branch in self.literal_branches) else None


class _RegexScanner:
    def __init__(self, pattern: str, param: str) -> None:
        self.pattern = pattern
        self.param = param
        self.at = 0
        self.groups = [_OpenGroup(0, 0)]

    def scan(self) -> RegexPart:
        while self.at < len(self.pattern):
            self.step()
        if len(self.groups) > 1:
            raise self.make_syntax_error("an unclosed '('", self.groups[-1].start)
        self.groups[0].end_branch(self.pattern, self.at)
        return self.groups[0].build_part()[0]

    def step(self) -> None:
        char = self.next_char()
        group = self.groups[-1]
        if char == "(":
            self.open_group()
        elif char == ")":
            self.close_group()
        elif char == "|":
            group.end_branch(self.pattern, self.at - 1)
        elif char in "*+?" or (char == "{" and self.parse_bounds() is not None):
            self.apply_repeat(char)
        elif char in "^$":
            group.add(EMPTY, None)
        elif char == "\\":
            self.scan_escape()
        else:
            mask = self.scan_char_class() if char == "[" else ANY_BUT_NEWLINE if char == "." else make_char_bit(char)
            group.add(match_char(mask), (mask,))

    def open_group(self) -> None:
        begins_at = self.at - 1
        if len(self.groups) > MAX_NESTING:
            raise InvalidRequest(
                f"the regex nests groups more than {MAX_NESTING} deep", "flatten the groups", param=self.param
            )
        if self.next_is("?"):
            self.skip_group_prefix()
        self.groups.append(_OpenGroup(begins_at, self.at))

    def skip_group_prefix(self) -> None:
        """Skip `?:`, `?P<name>` and `?<name>`; refuse every other `(?`."""
        start = self.pattern[self.at : self.at + 3]
        if start.startswith("?:"):
            self.at += 2
            return
        if start == "?P<" or (start[:2] == "?<" and start not in ("?<=", "?<!")):
            opening = self.pattern.index("<", self.at)
            end = self.pattern.find(">", opening)
            if end < 0 or not self.pattern[opening + 1 : end].isidentifier():
                raise self.make_syntax_error("a group without a valid name")
            self.at = end + 1
            return
        kind = _GROUP_KINDS.get(start[:2], "an inline flag")
        raise self.make_unsupported_error(f"{kind} '({start}'", "a plain group")

    def close_group(self) -> None:
        if len(self.groups) == 1:
            raise self.make_syntax_error("an unmatched ')'", self.at - 1)
        group = self.groups.pop()
        group.end_branch(self.pattern, self.at - 1)
        self.groups[-1].add(*group.build_part())

    def apply_repeat(self, char: str) -> None:
        position = self.at - 1
        group = self.groups[-1]
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char) or self.take_bounds()
        if group.last is None:
            raise self.make_syntax_error("a repeat with nothing to repeat", position)
        if high is None:
            self.check_unbounded_repeat(group.last, position)
            group.last = repeat_unbounded(group.last, low)
        else:
            group.last = repeat_bounded(group.last, low, high) if high else EMPTY
        masks = group.last_masks
        is_short = low == high and masks is not None and low * len(masks) <= _MAX_EXPANDED_CHARS
        group.last_masks = masks * low if is_short and masks is not None else None
        if self.next_is("+"):
            raise self.make_unsupported_error("a possessive repeat", "a plain repeat")
        if self.next_is("?"):
            self.at += 1  # a lazy repeat matches the same texts
        if self.next_is("*") or self.next_is("+") or self.next_is("?") or (self.next_is("{") and self.parse_bounds(1)):
            raise self.make_syntax_error("two consecutive repeats")

    def check_unbounded_repeat(self, part: RegexPart, position: int) -> None:
        if part.nullable:
            raise InvalidRequest(
                f"the regex has an unbounded repeat at position {position} whose content may be empty",
                "make it match at least one character: write a* instead of (a*)*",
                param=self.param,
            )
        if part.is_ambiguous or part.tail & part.first:
            raise InvalidRequest(
                f"the regex has an unbounded repeat at position {position} that can split a text in many ways",
                "write a+ instead of (a+)+, or end each repetition with a separator, as in (a+,)+",
                param=self.param,
            )

    def parse_bounds(self, offset: int = 0) -> tuple[int, int | None, int] | None:
        """Parse `m,}`, `m}`, `,n}` or `m,n}`. Return low, high and the end, or None if the brace is a literal."""
        begin = self.at + offset
        end = self.pattern.find("}", begin, begin + 64)
        low, comma, high = self.pattern[begin : max(end, begin)].partition(",")
        if end < 0 or not (low or high) or not all(part.isascii() and part.isdigit() for part in (low, high) if part):
            return None
        return int(low or 0), int(high) if high else None if comma else int(low), end + 1

    def take_bounds(self) -> tuple[int, int | None]:
        bounds = self.parse_bounds()
        assert bounds is not None
        low, high, self.at = bounds
        if high is not None and low > high:
            raise self.make_syntax_error(f"the invalid repeat {{{low},{high}}}")
        return low, high

    def scan_escape(self) -> None:
        char = self.next_char()
        group = self.groups[-1]
        if char in _ZERO_WIDTH:
            group.add(EMPTY, None)
            return
        if char in "123456789k":
            raise self.make_unsupported_error(f"the backreference '\\{char}'", "a copy of the referenced part")
        mask = (
            ESCAPED_CLASSES.get(char) or self.scan_property_class(char) or make_char_bit(self.scan_escaped_char(char))
        )
        group.add(match_char(mask), (mask,))

    def scan_property_class(self, char: str) -> int:
        """Scan `\\p{...}`. It counts as every character, since engines define its contents."""
        if char not in "pP":
            return 0
        end = self.pattern.find("}", self.at)
        if not self.next_is("{") or end < 0:
            raise self.make_syntax_error(f"'\\{char}' without a property in braces")
        self.at = end + 1
        return ALL_CHARS

    def scan_escaped_char(self, char: str) -> str:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _HEX_DIGITS:
            digits = self.pattern[self.at : self.at + _HEX_DIGITS[char]]
            self.at += len(digits)
            try:
                return chr(int(digits, 16)) if len(digits) == _HEX_DIGITS[char] and digits.isalnum() else chr(-1)
            except (ValueError, OverflowError):
                raise self.make_syntax_error(f"the invalid escape '\\{char}{digits}'") from None
        if char.isalnum():
            raise self.make_unsupported_error(f"the escape '\\{char}'", "literal characters")
        return char

    def scan_char_class(self) -> int:
        begins_at = self.at - 1
        negated = self.next_is("^")
        self.at += negated
        mask, is_first = 0, True
        while is_first or not self.next_is("]"):
            is_first = False
            if self.at >= len(self.pattern):
                raise self.make_syntax_error("an unclosed '['", begins_at)
            mask |= self.scan_class_item()
        self.at += 1
        return ALL_CHARS & ~mask if negated else mask

    def scan_class_item(self) -> int:
        """Scan one character, one escaped class, or a range."""
        low = self.scan_class_char()
        if isinstance(low, int):
            return low
        if not self.next_is("-") or self.pattern[self.at + 1 : self.at + 2] in ("]", ""):
            return make_char_bit(low)
        self.at += 1
        high = self.scan_class_char()
        if isinstance(high, int):
            return make_char_bit(low) | make_char_bit("-") | high
        if ord(low) > ord(high):
            raise self.make_syntax_error(f"the invalid range {low}-{high}")
        return make_range_bits(low, high)

    def scan_class_char(self) -> str | int:
        char = self.next_char()
        if char == "[" and self.next_is(":"):
            raise self.make_unsupported_error("a POSIX class '[:'", "\\d, \\w, \\s or literal characters")
        if char != "\\":
            return char
        escaped = self.next_char()
        if escaped == "b":
            return "\b"
        return ESCAPED_CLASSES.get(escaped) or self.scan_property_class(escaped) or self.scan_escaped_char(escaped)

    def next_char(self) -> str:
        if self.at >= len(self.pattern):
            raise self.make_syntax_error("a trailing backslash")
        self.at += 1
        return self.pattern[self.at - 1]

    def next_is(self, char: str) -> bool:
        return self.pattern[self.at : self.at + 1] == char

    def make_syntax_error(self, problem: str, position: int | None = None) -> InvalidRequest:
        if position is None:
            position = self.at
        return InvalidRequest(f"the regex has {problem} at position {position}", "correct the regex", param=self.param)

    def make_unsupported_error(self, feature: str, alternative: str) -> Unsupported:
        return Unsupported(
            f"the regex uses {feature}, which is not supported", f"use {alternative} instead", param=self.param
        )
