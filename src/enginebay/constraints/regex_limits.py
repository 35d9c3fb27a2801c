"""Checks that a regex is safe to compile: length, syntax, automaton size, and repeats that explode.

Engines themselves refuse what only they do not support (word boundaries, anchors inside a pattern, \\p{...}).
"""

from __future__ import annotations

from typing import Protocol

from enginebay.constraints import regex_syntax as syntax
from enginebay.constraints.char_ranges import find_char_ranges, is_matchable
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
from enginebay.errors import InvalidRequest
from enginebay.util.limit_errors import format_limit_hint

# Engines define what a Unicode property contains, so it counts as every character.
_SHORTHANDS = {**ESCAPED_CLASSES, ".": ANY_BUT_NEWLINE, "p": ALL_CHARS, "P": ALL_CHARS}
_MAX_EXPANDED_CHARS = 64  # an exact repeat up to this length stays a literal sequence


class ConstraintLimits(Protocol):
    """The limits that apply to constraints."""

    @property
    def regex_chars(self) -> int: ...

    @property
    def regex_states(self) -> int: ...

    @property
    def choices(self) -> int: ...

    @property
    def choice_bytes(self) -> int: ...

    @property
    def grammar_bytes(self) -> int: ...

    @property
    def grammar_depth(self) -> int: ...

    @property
    def grammar_rules(self) -> int: ...

    @property
    def grammar_symbols(self) -> int: ...

    @property
    def grammar_stacks(self) -> int: ...

    @property
    def schema_depth(self) -> int: ...

    @property
    def schema_nodes(self) -> int: ...

    @property
    def schema_bytes(self) -> int: ...


def check_regex(pattern: object, limits: ConstraintLimits, param: str) -> None:
    """Raise `InvalidRequest` or `Unsupported` if this regex must not reach an engine."""
    count_states(pattern, limits, param)


def analyze_regex(pattern: str, param: str) -> RegexPart:
    """Return the properties of a regex. Raises `InvalidRequest` or `Unsupported`."""
    return analyze_tree(syntax.parse_regex(pattern), param)


def analyze_tree(regex: syntax.Group, param: str) -> RegexPart:
    return _RegexLimits(param).visit_group(regex)[0]


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
    states = analyze_regex(pattern, param).states
    if states > limits.regex_states:
        number = f"{states}" if states < COUNT_CAP else f"over {COUNT_CAP}"
        raise InvalidRequest(
            f"the regex needs about {number} states; the maximum is {limits.regex_states}",
            format_limit_hint("regex_states", "use smaller repeat counts, especially in nested repeats"),
            param=param,
        )
    return states


class _RegexLimits:
    """Visitor. Returns the properties of each part, and its masks if it is a literal sequence."""

    def __init__(self, param: str) -> None:
        self.param = param

    def visit(self, node: syntax.Node) -> tuple[RegexPart, Masks | None]:
        if isinstance(node, syntax.Group):
            return self.visit_group(node)
        if isinstance(node, syntax.Repeat):
            return self.visit_repeat(node)
        if isinstance(node, syntax.Fault):
            raise node.to_error(self.param)
        if isinstance(node, syntax.Anchor):
            return EMPTY, None
        self.check_matchable(node)
        mask = _make_mask(node)
        return match_char(mask), (mask,)

    def visit_group(self, group: syntax.Group) -> tuple[RegexPart, Masks | None]:
        branches = [self.visit_sequence(branch) for branch in group.branches]
        literals = [masks for _, masks in branches if masks is not None]
        has_duplicates = len({branch.text for branch in group.branches}) < len(branches)
        part = alternate([branch for branch, _ in branches], literals, has_duplicates)
        if len(literals) < len(branches):
            return part, None
        if len(literals) == 1:
            return part, literals[0]
        return part, (part.first,) if all(len(masks) == 1 for masks in literals) else None

    def visit_sequence(self, sequence: syntax.Sequence) -> tuple[RegexPart, Masks | None]:
        whole, literal = EMPTY, True
        literals: list[int] = []
        for node in sequence.nodes:
            part, masks = self.visit(node)
            whole = concatenate(whole, part)
            literal = literal and masks is not None
            literals += masks or ()
        return whole, tuple(literals) if literal else None

    def visit_repeat(self, repeat: syntax.Repeat) -> tuple[RegexPart, Masks | None]:
        part, masks = self.visit(repeat.node)
        low, high = repeat.low, repeat.high
        if high is None:
            self.check_unbounded_repeat(part, repeat.position)
            return repeat_unbounded(part, low), None
        is_short = low == high and masks is not None and low * len(masks) <= _MAX_EXPANDED_CHARS
        repeated = masks * low if is_short and masks is not None else None
        return repeat_bounded(part, low, high) if high else EMPTY, repeated

    def check_matchable(self, node: syntax.Char | syntax.Shorthand | syntax.CharClass) -> None:
        if isinstance(node, syntax.Char) and "\0" < node.char < "\ud800":  # most of them
            return
        if isinstance(node, syntax.Char) and node.char == "\0":
            raise InvalidRequest("the regex has a NUL character", "remove it", param=self.param)
        ranges = find_char_ranges(node)
        if ranges is not None and not is_matchable(ranges):
            raise InvalidRequest(
                "the regex has a class that matches no character", "correct or remove it", param=self.param
            )

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


def _make_mask(node: syntax.CharClass | syntax.ClassItem) -> int:
    if isinstance(node, syntax.Char):
        return make_char_bit(node.char)
    if isinstance(node, syntax.CharRange):
        return make_range_bits(node.low, node.high)
    if isinstance(node, syntax.Shorthand):
        return _SHORTHANDS[node.letter]
    mask = 0
    for item in node.items:
        mask |= _make_mask(item)
    return ALL_CHARS & ~mask if node.negated else mask
