"""Which grammars may reach an engine: references, recursion, size, ambiguity."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.sections.server_section import ServerLimits
from enginebay.constraints.gbnf_syntax import parse_gbnf
from enginebay.constraints.grammar_limits import _find_fault, check_grammar
from enginebay.constraints.grammar_regex import to_regex
from enginebay.errors import RequestError, Unsupported
from tests.hostile import corpus_guided

LIMITS = ServerLimits()


def refusal(text: str, limits: ServerLimits = LIMITS) -> RequestError:
    with pytest.raises(RequestError) as error:
        check_grammar(text, limits, "guided_grammar")
    assert error.value.param == "guided_grammar" and error.value.hint
    return error.value


def select(corpus: corpus_guided.Corpus) -> list[tuple[str, str]]:
    return [(name, fields["guided_grammar"]) for name, fields in corpus if "guided_grammar" in fields]


@pytest.mark.parametrize(("name", "text"), select(corpus_guided.ORDINARY))
def test_ordinary_grammars_pass(name: str, text: str) -> None:
    check_grammar(text, LIMITS, "guided_grammar")


@pytest.mark.parametrize(("name", "text"), select(corpus_guided.REFUSED))
def test_hostile_grammars_are_refused_in_little_time(name: str, text: str) -> None:
    _find_fault.cache_clear()
    began = time.process_time()
    refusal(text)
    assert time.process_time() - began < 2


REAL = [
    # a form with optional parts, and blanks everywhere
    'root ::= ws "{" ws pair (ws "," ws pair)* ws "}" ws\npair ::= key ws ":" ws value\nkey ::= "\\"" [a-z]+ "\\""\n'
    'value ::= key | [0-9]+ | root\nws ::= [ \\t\\n]*',
    # mathematics with precedence
    'root ::= sum\nsum ::= product (("+" | "-") product)*\nproduct ::= power (("*" | "/") power)*\n'
    'power ::= atom ("^" power)?\natom ::= [0-9]+ ("." [0-9]+)? | "(" sum ")" | "-" atom',
    # a subset of SQL
    'root ::= "SELECT " columns " FROM " name (" WHERE " condition)? ";"\ncolumns ::= "*" | name (", " name)*\n'
    'name ::= [a-z_] [a-z0-9_]*\ncondition ::= term ((" AND " | " OR ") term)*\n'
    'term ::= name " " ("=" | "<" | ">") " " (name | number | text) | "(" condition ")"\nnumber ::= [0-9]+\n'
    "text ::= \"'\" [^']* \"'\"",
    # nested lists in markdown
    'root ::= list\nlist ::= item+\nitem ::= "- " [^\\n]+ "\\n" ("  " item)*',
    # arithmetic with unary signs and functions
    'root ::= e\ne ::= t (op t)*\nop ::= " + " | " - "\nt ::= "sin(" e ")" | "cos(" e ")" | v\nv ::= [xyz] | [0-9]{1,9}',
    # XML
    'root ::= element\nelement ::= "<" name ">" (element | text)* "</" name ">"\nname ::= [a-z]{1,20}\ntext ::= [^<>&]+ "&"',
    # a call of one of several tools
    'root ::= "[" call ("," call)* "]"\ncall ::= ("search" | "open" | "close") "(" (arg ("," arg)*)? ")"\n'
    'arg ::= [a-z]+ "=" (str | num | call)\nstr ::= "\\"" ([^"\\\\] | "\\\\" .)* "\\""\nnum ::= "-"? [0-9]+',
    # a thought before the answer
    'root ::= "<think>" [^<]* "</think>" "\\n" ("yes" | "no")',
    "root ::= <|think|> [a-z]+",
]  # fmt: skip


@pytest.mark.parametrize("text", REAL)
def test_real_grammars_pass(text: str) -> None:
    check_grammar(text, LIMITS, "guided_grammar")


@pytest.mark.parametrize(
    ("text", "message", "limit"),
    [
        ('root ::= x\n# x ::= "a"', "no rule 'x'", ""),
        ('start ::= "a"', "no rule 'root'", ""),
        ('root ::= root "a" | "b"', "'root' is left-recursive", ""),
        ('root ::= (root)? "a"', "'root' is left-recursive", ""),
        ('root ::= a\na ::= b "x"\nb ::= c? a | "y"\nc ::= "z"', "is left-recursive", ""),
        ('root ::= "x" (a b)*\na ::= "a"?\nb ::= "b"*', "'root' has an unbounded repeat of something that can be empty", ""),
        ('root ::= [^\\x00-\\U0010FFFF]', "a class that matches no text", ""),
        ("root ::= []", "a class that matches no text", ""),
        ("root ::= [\\uD800-\\uDFFF]", "a class that matches no text", ""),
        ('root ::= "\\uD800"', "a class that matches no text", ""),
        ('root ::= "a"{20001}', "over 20000 symbols", "grammar_symbols"),
        ('root ::= ("a"{150}){0,150}', "over 20000 symbols", "grammar_symbols"),
        ("\n".join(['root ::= "a"', *(f'r{n} ::= "a"' for n in range(1024))]), "1025 rules", "grammar_rules"),
        ('root ::= "(" root ")" | s\ns ::= t t | "a"\nt ::= "a" s | "a" | "a" t t', "too ambiguous", "grammar_stacks"),
        ('root ::= "(" root ")" | (("a" | "a") ("a" | "a"))*', "too ambiguous", "grammar_stacks"),
        ('root ::= "(" root ")" | ([a-z]?){300}', "too ambiguous", "grammar_stacks"),
    ],
)  # fmt: skip
def test_refusals_name_the_cause_and_the_limit(text: str, message: str, limit: str) -> None:
    error = refusal(text)
    assert message in error.message
    assert (f"server.limits.{limit}" in error.hint) == bool(limit)


@pytest.mark.parametrize(
    "text",
    ['%llguidance {}\nstart: "a"', 'start: "a"', '\n?start : "a" | item\nitem: "b"', "// numbers\nstart: NUMBER"],
)
def test_a_lark_grammar_is_not_supported(text: str) -> None:
    error = refusal(text)
    assert isinstance(error, Unsupported) and "only GBNF" in error.message


def test_the_limits_can_be_raised() -> None:
    text = 'root ::= "a"{20001}'
    check_grammar(text, ServerLimits(grammar_symbols=50_000), "guided_grammar")


def test_results_are_remembered() -> None:
    _find_fault.cache_clear()
    for _ in range(3):
        check_grammar(corpus_guided.JSON_GRAMMAR, LIMITS, "guided_grammar")
    assert _find_fault.cache_info().hits == 2


@pytest.mark.parametrize(
    "text", [corpus_guided.LIST_GRAMMAR, corpus_guided.CHESS_GRAMMAR, 'root ::= a a\na ::= "x" b?\nb ::= .']
)
def test_a_grammar_without_recursion_is_a_regex(text: str) -> None:
    assert to_regex(parse_gbnf(text, 32)) is not None


def test_a_grammar_that_doubles_is_no_regex() -> None:
    rules = "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(40))
    text = f'root ::= r0\n{rules}\nr40 ::= "a"'
    check_grammar(text, LIMITS, "guided_grammar")
    assert to_regex(parse_gbnf(text, 32)) is None


def test_recursion_and_tokens_are_no_regex() -> None:
    assert to_regex(parse_gbnf(corpus_guided.JSON_GRAMMAR, 32)) is None
    assert to_regex(parse_gbnf("root ::= <[7]>", 32)) is None


@given(st.text(alphabet=st.sampled_from('ab ()|*+?"{3}'), max_size=30))
def test_any_text_is_accepted_or_refused_with_a_message(text: str) -> None:
    try:
        check_grammar(f'root ::= {text}\na ::= "x" root?\nb ::= "y"', LIMITS, "guided_grammar")
    except RequestError as error:
        assert error.message and error.param == "guided_grammar"
        assert not re.search(r"Traceback|Error\b", error.message)
