"""Is a regex fit to be compiled? Its length, its syntax, the size of its automaton, and repeats that explode.

One pass from left to right with a stack of open groups: linear time and no recursion, whatever is sent. What single
engines lack beyond this (word borders, anchors inside a pattern, \\p{...}) they refuse themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from enginebay.config.server import Limits
from enginebay.errors import InvalidRequest, Unsupported
from enginebay.server.limit_words import limit_hint
from enginebay.server.regex_chars import ANY_BUT_NEWLINE, ESCAPED_CLASSES, EVERY, char_bit, range_bits
from enginebay.server.regex_parts import EMPTY, MANY, Masks, Part, either, joined, position, repeated, without_end

MAX_NESTING = 50  # groups within groups: engines parse them recursively
_GROUP_KINDS = {
    "?=": "a look-ahead", "?!": "a look-ahead", "?<": "a look-behind", "?P": "a back reference", "?(": "a condition",
    "?>": "an atomic group", "?#": "a comment",
}  # fmt: skip
_SHORT = 64  # characters up to which an exact repeat is kept written out
_ZERO_WIDTH = "bBAZz"
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def check_regex(pattern: object, limits: Limits, param: str) -> None:
    """Raises `InvalidRequest` or `Unsupported` when this regex must not reach an engine."""
    count_states(pattern, limits, param)


def count_states(pattern: object, limits: Limits, param: str) -> int:
    """As `check_regex`; gives back about how many states the automaton has."""
    if not isinstance(pattern, str):
        raise InvalidRequest("the regex is not text", "give it as a string", param=param)
    if len(pattern) > limits.regex_chars:
        raise InvalidRequest(
            f"the regex is {len(pattern)} characters long, at most {limits.regex_chars} are allowed",
            limit_hint("regex_chars", "shorten it"),
            param=param,
        )
    states = _Scanner(pattern, param).scan().states
    if states > limits.regex_states:
        number = f"{states}" if states < MANY else f"over {MANY}"
        raise InvalidRequest(
            f"the regex needs about {number} states, at most {limits.regex_states} are allowed",
            limit_hint("regex_states", "use smaller repeat counts, above all where repeats stand within repeats"),
            param=param,
        )
    return states


@dataclass(slots=True)
class _Group:
    """A group that is still open: what it holds so far."""

    begins_at: int
    branch_at: int
    branches: list[Part] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)
    has_twins: bool = False
    simple: list[Masks] = field(default_factory=list)
    sequence: Part = EMPTY  # of the current branch, without its last atom
    masks: list[int] | None = field(default_factory=list)  # the same as a plain sequence; None: it is none
    last: Part | None = None  # that atom: a repeat may follow
    last_masks: Masks | None = None

    def add(self, part: Part, masks: Masks | None) -> None:
        self.settle()
        self.last, self.last_masks = part, masks

    def settle(self) -> None:
        if self.last is None:
            return
        self.sequence = joined(self.sequence, self.last)
        if self.masks is not None and self.last_masks is not None:
            self.masks += self.last_masks
        else:
            self.masks = None
        self.last = None

    def end_branch(self, pattern: str, at: int) -> None:
        self.settle()
        text = pattern[self.branch_at : at]
        self.has_twins = self.has_twins or text in self.texts
        self.texts.add(text)
        self.branches.append(self.sequence)
        if self.masks is not None:
            self.simple.append(tuple(self.masks))
        self.sequence, self.masks, self.branch_at = EMPTY, [], at + 1

    def closed(self) -> tuple[Part, Masks | None]:
        part = either(self.branches, self.simple, self.has_twins)
        if len(self.simple) < len(self.branches):
            return part, None
        if len(self.simple) == 1:
            return part, self.simple[0]
        return part, (part.first,) if all(len(one) == 1 for one in self.simple) else None


class _Scanner:
    def __init__(self, pattern: str, param: str) -> None:
        self.pattern = pattern
        self.param = param
        self.at = 0
        self.groups = [_Group(0, 0)]

    def scan(self) -> Part:
        while self.at < len(self.pattern):
            self.step()
        if len(self.groups) > 1:
            raise self.wrong("an unclosed '('", self.groups[-1].begins_at)
        self.groups[0].end_branch(self.pattern, self.at)
        return self.groups[0].closed()[0]

    def step(self) -> None:
        char = self.take()
        group = self.groups[-1]
        if char == "(":
            self.open_group()
        elif char == ")":
            self.close_group()
        elif char == "|":
            group.end_branch(self.pattern, self.at - 1)
        elif char in "*+?" or (char == "{" and self.bounds() is not None):
            self.repeat(char)
        elif char in "^$":
            group.add(EMPTY, None)
        elif char == "\\":
            self.escape()
        else:
            mask = self.char_class() if char == "[" else ANY_BUT_NEWLINE if char == "." else char_bit(char)
            group.add(position(mask), (mask,))

    def open_group(self) -> None:
        begins_at = self.at - 1
        if len(self.groups) > MAX_NESTING:
            raise InvalidRequest(
                f"the regex has groups nested more than {MAX_NESTING} deep", "flatten it", param=self.param
            )
        if self.next_is("?"):
            self.group_kind()
        self.groups.append(_Group(begins_at, self.at))

    def group_kind(self) -> None:
        """Step over `?:`, `?P<name>` and `?<name>`; every other `(?` is refused."""
        start = self.pattern[self.at : self.at + 3]
        if start.startswith("?:"):
            self.at += 2
            return
        if start == "?P<" or (start[:2] == "?<" and start not in ("?<=", "?<!")):
            opening = self.pattern.index("<", self.at)
            end = self.pattern.find(">", opening)
            if end < 0 or not self.pattern[opening + 1 : end].isidentifier():
                raise self.wrong("a group without a proper name")
            self.at = end + 1
            return
        what = _GROUP_KINDS.get(start[:2], "an inline flag")
        raise self.unsupported(f"{what} '({start}'", "a plain group")

    def close_group(self) -> None:
        if len(self.groups) == 1:
            raise self.wrong("an unmatched ')'", self.at - 1)
        group = self.groups.pop()
        group.end_branch(self.pattern, self.at - 1)
        self.groups[-1].add(*group.closed())

    def repeat(self, char: str) -> None:
        place = self.at - 1
        group = self.groups[-1]
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char) or self.take_bounds()
        if group.last is None:
            raise self.wrong("a repeat with nothing to repeat", place)
        if high is None:
            self.check_rounds(group.last, place)
            group.last = without_end(group.last, low)
        else:
            group.last = repeated(group.last, low, high) if high else EMPTY
        masks = group.last_masks
        is_short = low == high and masks is not None and low * len(masks) <= _SHORT
        group.last_masks = masks * low if is_short and masks is not None else None
        if self.next_is("+"):
            raise self.unsupported("a possessive repeat", "a plain one")
        if self.next_is("?"):
            self.at += 1  # lazy: the set of matching texts is the same
        if self.next_is("*") or self.next_is("+") or self.next_is("?") or (self.next_is("{") and self.bounds(1)):
            raise self.wrong("two repeats after each other")

    def check_rounds(self, part: Part, place: int) -> None:
        if part.nullable:
            raise InvalidRequest(
                f"the regex repeats without end, at place {place}, what may be empty",
                "let it match at least one character: instead of (a*)* write a*",
                param=self.param,
            )
        if part.is_open or part.tail & part.first:
            raise InvalidRequest(
                f"the regex repeats without end, at place {place}, what can be divided in many ways",
                "repeat once, a+ instead of (a+)+, or end each round with a character of its own, as in (a+,)+",
                param=self.param,
            )

    def bounds(self, offset: int = 0) -> tuple[int, int | None, int] | None:
        """`m,}`, `m}`, `,n}` or `m,n}` from here on, and where it ends; None: the brace is a plain character."""
        begin = self.at + offset
        end = self.pattern.find("}", begin, begin + 64)
        low, comma, high = self.pattern[begin : max(end, begin)].partition(",")
        if end < 0 or not (low or high) or not all(part.isascii() and part.isdigit() for part in (low, high) if part):
            return None
        return int(low or 0), int(high) if high else None if comma else int(low), end + 1

    def take_bounds(self) -> tuple[int, int | None]:
        found = self.bounds()
        assert found is not None
        low, high, self.at = found
        if high is not None and low > high:
            raise self.wrong(f"the repeat {{{low},{high}}}")
        return low, high

    def escape(self) -> None:
        char = self.take()
        group = self.groups[-1]
        if char in _ZERO_WIDTH:
            group.add(EMPTY, None)
            return
        if char in "123456789k":
            raise self.unsupported(f"the back reference '\\{char}'", "the referenced part written out")
        mask = ESCAPED_CLASSES.get(char) or self.property_class(char) or char_bit(self.escaped_char(char))
        group.add(position(mask), (mask,))

    def property_class(self, char: str) -> int:
        """`\\p{...}`, taken as every character: which ones it means is the engine's affair."""
        if char not in "pP":
            return 0
        end = self.pattern.find("}", self.at)
        if not self.next_is("{") or end < 0:
            raise self.wrong(f"'\\{char}' without a property in braces")
        self.at = end + 1
        return EVERY

    def escaped_char(self, char: str) -> str:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _HEX_DIGITS:
            digits = self.pattern[self.at : self.at + _HEX_DIGITS[char]]
            self.at += len(digits)
            try:
                return chr(int(digits, 16)) if len(digits) == _HEX_DIGITS[char] and digits.isalnum() else chr(-1)
            except (ValueError, OverflowError):
                raise self.wrong(f"'\\{char}{digits}'") from None
        if char.isalnum():
            raise self.unsupported(f"'\\{char}'", "the characters themselves")
        return char

    def char_class(self) -> int:
        begins_at = self.at - 1
        negated = self.next_is("^")
        self.at += negated
        mask, is_first = 0, True
        while is_first or not self.next_is("]"):
            is_first = False
            if self.at >= len(self.pattern):
                raise self.wrong("an unclosed '['", begins_at)
            mask |= self.class_item()
        self.at += 1
        return EVERY & ~mask if negated else mask

    def class_item(self) -> int:
        """One character, one escaped class, or a range."""
        low = self.class_char()
        if isinstance(low, int):
            return low
        if not self.next_is("-") or self.pattern[self.at + 1 : self.at + 2] in ("]", ""):
            return char_bit(low)
        self.at += 1
        high = self.class_char()
        if isinstance(high, int):
            return char_bit(low) | char_bit("-") | high
        if ord(low) > ord(high):
            raise self.wrong(f"the range {low}-{high}")
        return range_bits(low, high)

    def class_char(self) -> str | int:
        char = self.take()
        if char == "[" and self.next_is(":"):
            raise self.unsupported("a POSIX class '[:'", "\\d, \\w, \\s or the characters themselves")
        if char != "\\":
            return char
        escaped = self.take()
        if escaped == "b":
            return "\b"
        return ESCAPED_CLASSES.get(escaped) or self.property_class(escaped) or self.escaped_char(escaped)

    def take(self) -> str:
        if self.at >= len(self.pattern):
            raise self.wrong("a backslash at the end")
        self.at += 1
        return self.pattern[self.at - 1]

    def next_is(self, char: str) -> bool:
        return self.pattern[self.at : self.at + 1] == char

    def wrong(self, what: str, place: int | None = None) -> InvalidRequest:
        where = self.at if place is None else place
        return InvalidRequest(f"the regex has {what} at place {where}", "correct the regex", param=self.param)

    def unsupported(self, what: str, instead: str) -> Unsupported:
        return Unsupported(f"a regex with {what} cannot guide an answer", f"use {instead}", param=self.param)
