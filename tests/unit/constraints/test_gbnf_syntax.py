"""The grammar parser: what it reads, what it refuses, in linear time and without a stack."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.constraints.gbnf_syntax import (
    ANY_CHAR,
    GrammarFault,
    GrammarGroup,
    GrammarNode,
    GrammarRepeat,
    RuleRef,
    TokenRef,
    parse_gbnf,
)
from enginebay.constraints.regex_syntax import Char, CharClass, CharRange


def parse_sequence(text: str) -> tuple[GrammarNode, ...]:
    (branch,) = parse_gbnf(f"root ::= {text}", 50)["root"].branches
    return branch


def find_fault(text: str, max_depth: int = 50) -> GrammarFault:
    with pytest.raises(GrammarFault) as caught:
        parse_gbnf(text, max_depth)
    return caught.value


def quote(text: str) -> GrammarGroup:
    return GrammarGroup((tuple(map(Char, text)),))


def test_sequences() -> None:
    assert parse_sequence('"ab" rule . <think> !<[12]>') == (
        quote("ab"), RuleRef("rule"), ANY_CHAR, TokenRef("<think>"), TokenRef("!<[12]>"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("*", 0, None),
        ("+", 1, None),
        ("?", 0, 1),
        ("{3}", 3, 3),
        ("{2,}", 2, None),
        ("{ 2 , 5 }", 2, 5),
        ("{,5}", 0, 5),
    ],
)
def test_repeats_apply_to_the_whole_text(text: str, low: int, high: int | None) -> None:
    assert parse_sequence(f'"ab"{text}') == (GrammarRepeat(quote("ab"), low, high),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a-z_]", CharClass((CharRange("a", "z"), Char("_")), False)),
        ("[^\\n\\]]", CharClass((Char("\n"), Char("]")), True)),
        ("[a-]", CharClass((Char("a"), Char("-")), False)),
        ("[-+]", CharClass((Char("-"), Char("+")), False)),
        ("[\\x41-\\u0042\\U0001F600]", CharClass((CharRange("A", "B"), Char("😀")), False)),
    ],
)
def test_classes(text: str, expected: CharClass) -> None:
    assert parse_sequence(text) == (expected,)


def test_rules_may_span_lines_and_have_comments() -> None:
    text = '# first\nroot ::= a # to the end "\n  | (b\n | "c")\n\na ::= "x" # ::= \nb_2 ::= "y"\nb ::= b_2'
    rules = parse_gbnf(text, 50)
    assert list(rules) == ["root", "a", "b_2", "b"]
    assert rules["root"].branches == ((RuleRef("a"),), (GrammarGroup(((RuleRef("b"),), (quote("c"),))),))


def test_the_last_definition_counts() -> None:
    assert parse_gbnf('root ::= "a"\nroot ::= "b"', 50)["root"].branches == ((quote("b"),),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"a"', "before the first rule"),
        ("root", "expected '::=' after 'root' at line 1, column 1"),
        ("::= x", "without a name"),
        ('root ::= "a', "a text that does not end at line 1, column 10"),
        ("root ::= [a", "a '[' that does not end"),
        ('root ::= ("a"', "an unclosed '(' at line 1, column 10"),
        ('root ::= "a")', "an unmatched ')' at line 1, column 13"),
        ("root ::= *", "nothing to repeat"),
        ('root ::= a\na ::= "b")', "an unmatched ')' at line 2, column 10"),
        ('root ::= "a"**', "two consecutive repeats"),
        ('root ::= "a"{3,2}', "the invalid repeat {3,2}"),
        ('root ::= "a"{}', "the invalid repeat"),
        ('root ::= "a"{3 4}', "the invalid repeat"),
        ('root ::= "a"{x}', "an unexpected '{'"),
        ('root ::= "\\q"', "the unknown escape '\\q'"),
        ('root ::= "\\xZZ"', "the invalid escape"),
        ('root ::= "\\', "the unknown escape"),
        ("root ::= [z-a]", "the invalid range"),
        ('root ::= "\\x00"', "a NUL character"),
        ('root ::= a, "b"', "an unexpected ','"),
        ('root ::= (="a") "b"', "an unexpected '='"),
    ],
)
def test_mistakes_name_their_position(text: str, expected: str) -> None:
    fault = find_fault(text)
    assert expected in fault.message and "at line" in fault.message and fault.hint


def test_nesting_is_bounded() -> None:
    parse_gbnf("root ::= " + "(" * 50 + '"a"' + ")" * 50, 50)
    assert find_fault("root ::= " + "(" * 51 + '"a"' + ")" * 51).limit == "grammar_depth"


@pytest.mark.parametrize(
    "text",
    [
        "root ::= " + "(" * 60_000,
        "root ::= a" + "*" * 60_000,
        "root ::= a " + "# # " * 15_000,
        "root ::= a{" + " " * 60_000,
        "root ::= " + "a " * 30_000,
        'root ::= "' + "a" * 60_000,
        "root ::= [" + "a-" * 30_000,
        "<" * 60_000,
        "root ::= " + "<" * 60_000,
    ],
    ids=lambda text: text[:14],
)
def test_hostile_grammars_take_little_time_and_no_stack(text: str) -> None:
    began = time.process_time()
    try:
        parse_gbnf(text, 50)
    except GrammarFault:
        pass
    assert time.process_time() - began < 2


@given(st.text(alphabet=st.sampled_from('ab ()[]{}|*+?^\\"\n#:=,-019<>!.rot'), max_size=60))
def test_any_text_parses_or_has_a_fault(text: str) -> None:
    try:
        parse_gbnf(f"root ::= {text}", 50)
    except GrammarFault as fault:
        assert fault.message and fault.hint
