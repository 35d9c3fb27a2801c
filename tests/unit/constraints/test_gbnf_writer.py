"""A grammar is written so that both llama.cpp and xgrammar read it, and means the same."""

from __future__ import annotations

import pytest

from enginebay.constraints.gbnf_syntax import parse_gbnf
from enginebay.constraints.gbnf_writer import normalize_gbnf, write_gbnf
from enginebay.constraints.grammar_rules import flatten_rules
from tests.hostile import corpus_guided


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('root ::= "a" | my_rule\nmy_rule ::= | [^a-z\\]^-]', 'root ::= "a" | rule1\nrule1 ::= "" | [^a-z\\x5D\\x5E\\x2D]\n'),
        ('root ::= ("a"\n | "b")* # both\n', 'root ::= ("a" | "b")*\n'),
        ('root ::= "é\\n\\"\\\\😀" . {2,5}', 'root ::= "\\xE9\\x0A\\x22\\x5C\\U0001F600" [\\x00-\\U0010FFFF]{2,5}\n'),
        ("root ::= <think> !<[7]>+", "root ::= <think> !<[7]>+\n"),
    ],
)  # fmt: skip
def test_writes(text: str, written: str) -> None:
    assert normalize_gbnf(text) == written


@pytest.mark.parametrize(
    "text", [fields["guided_grammar"] for _, fields in corpus_guided.ORDINARY if "guided_grammar" in fields]
)
def test_what_is_written_means_the_same(text: str) -> None:
    rules = parse_gbnf(text, 50)
    written = write_gbnf(rules)
    assert flatten_rules(parse_gbnf(written, 50), 10**6).rules == flatten_rules(rules, 10**6).rules


def test_a_grammar_with_an_error_stays() -> None:
    assert normalize_gbnf("root ::= (") == "root ::= ("
    assert normalize_gbnf("root ::= missing") == "root ::= missing"
