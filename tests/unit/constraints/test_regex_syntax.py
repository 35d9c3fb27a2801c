"""One syntax tree, two visitors: both accept the same regexes, apart from what only one of them objects to."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.sections.server_section import ServerLimits
from enginebay.constraints.regex_limits import check_regex
from enginebay.constraints.regex_syntax import Char, CharClass, CharRange, Fault, Group, Repeat, Shorthand, parse_regex
from enginebay.engines.llamacpp.guided.llguidance_grammar import write_regex
from enginebay.errors import RequestError

LIMITS = ServerLimits()

VALID = ["a", "é", ".", r"\d", r"\W", r"\x41", r"\p{L}", r"\b", "^", "$", "{", "]", "[a-z]", "[^-a]", r"[\w-]", r"[\D]"]
FAULTY = ["(", ")", "[", "\\", "[z-a]", "(?=a)", r"\1", r"\q", "*", "{2}"]
ATOMS = st.sampled_from([*VALID, *FAULTY])
COUNTS = st.sampled_from(["", "", "*", "+?", "{2}", "{,3}", "{1,}", "++", "{3,2}"])
PATTERNS = st.recursive(
    st.builds("".join, st.lists(st.builds(str.__add__, ATOMS, COUNTS), max_size=3)),
    lambda inner: st.builds("({}){}|{}".format, inner, COUNTS, inner),
    max_leaves=6,
)


def find_error(check: object, *arguments: object) -> RequestError | None:
    assert callable(check)
    try:
        check(*arguments)
    except RequestError as error:
        return error
    return None


@given(PATTERNS)
def test_both_visitors_accept_the_same_syntax(pattern: str) -> None:
    limits = find_error(check_regex, pattern, LIMITS, "guided_regex")
    written = find_error(write_regex, pattern)
    fault = find_fault(parse_regex(pattern))
    if fault is not None:
        expected = fault.to_error("guided_regex")
        assert limits is not None and written is not None
        assert limits.message == expected.message or "repeat at position" in limits.message
        assert written.message == expected.message or "llamacpp does not support" in written.message
    else:
        assert limits is None or "repeat at position" in limits.message or "states" in limits.message
        assert written is None or "llamacpp does not support" in written.message


def find_fault(node: object) -> Fault | None:
    if isinstance(node, Repeat):
        return find_fault(node.node)
    if isinstance(node, Group):
        return next((found for branch in node.branches for part in branch.nodes if (found := find_fault(part))), None)
    return node if isinstance(node, Fault) else None


@pytest.mark.parametrize("pattern", ["(" * 30_000 + "a" + ")" * 30_000, "(a" * 30_000, "(?<a>" * 30_000, "{" * 30_000])
def test_hostile_patterns_take_little_time_and_no_stack(pattern: str) -> None:
    began = time.process_time()
    error = find_error(write_regex, pattern)
    assert time.process_time() - began < 2
    assert error is None if pattern[0] == "{" else error is not None and "50 deep" in error.message


def test_classes_keep_their_items() -> None:
    (branch,) = parse_regex(r"[^a-c-e\d][a-\d]").branches
    assert [node.items for node in branch.nodes if isinstance(node, CharClass)] == [
        (CharRange("a", "c"), Char("-"), Char("e"), Shorthand("d")),
        (Char("a"), Char("-"), Shorthand("d")),
    ]


@pytest.mark.parametrize(
    ("pattern", "grammar"),
    [
        (r"[a-\d]", r"[\x{2D}-\x{2D}\x{30}-\x{39}\x{61}-\x{61}]"),  # a dash before a shorthand is a dash
        (r"[\d-a]", r"[\x{2D}-\x{2D}\x{30}-\x{39}\x{61}-\x{61}]"),
        ("[[-a]", r"[\x{5B}-\x{61}]"),
        ("[a^-z]", r"[\x{5E}-\x{7A}]"),
    ],
)
def test_dashes_mean_the_same_to_both_visitors(pattern: str, grammar: str) -> None:
    assert write_regex(pattern) == f"%llguidance {{}}\nstart: /(?:{grammar})/\n"
