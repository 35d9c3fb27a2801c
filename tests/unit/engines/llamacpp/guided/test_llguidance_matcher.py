"""llguidance inside xllamacpp: what it takes, and following an output byte by byte."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from enginebay.engines.llamacpp.guided.llguidance_grammar import write_choices, write_grammar, write_regex, write_schema
from enginebay.engines.llamacpp.guided.llguidance_matcher import ConstraintError, LlguidanceLibrary
from enginebay.engines.llamacpp.request_body import parse_json_schema, write_constraint
from tests.hostile import corpus_guided

xllamacpp = pytest.importorskip("xllamacpp")


@pytest.fixture(scope="module")
def library() -> LlguidanceLibrary:
    return LlguidanceLibrary(xllamacpp.xllamacpp.__file__)


def matches(library: LlguidanceLibrary, grammar: str, text: str) -> bool:
    follower = library.start(grammar)
    return follower.consume(text, ()) and follower.is_accepting()


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\d{4}-\d{2}-\d{2}$", ["2024-01-31"], ["2024-1-31", "x", "2024-01-311"]),
        (r"a*", ["", "aaaa"], ["b", "aab"]),
        (r"(?:x|)y?", ["", "x", "y", "xy"], ["yx"]),
        (r".", ["a", "é", "😀", "/", "\\", '"'], ["", "\n", "ab"]),
        (r"\s\S\w\W", [" éa-", "\n1_ "], ["a1_ "]),
        (r"[^\n]+\n", ["a b\n"], ["a"]),
        (r"/\.\"\\\[\{", ['/."\\[{'], ["/"]),
        (r"é日😀", ["é日😀"], ["é"]),
        (r"(cat|car|carpet)s?", ["cat", "cars", "carpet", "carpets"], ["ca", "carp", "catss"]),
        (r"[a-c]{2,3}", ["ab", "abc"], ["a", "abca"]),
        (r"", [""], ["a"]),
    ],
)
def test_regexes(library: LlguidanceLibrary, pattern: str, good: list[str], bad: list[str]) -> None:
    grammar = write_regex(pattern)
    assert [text for text in good if not matches(library, grammar, text)] == []
    assert [text for text in bad if matches(library, grammar, text)] == []


def test_choices(library: LlguidanceLibrary) -> None:
    choices = ["yes", "no", "yes, sir", 'a "quoted" /one/', "über\n", "(.*)"]
    grammar = write_choices(choices)
    assert all(matches(library, grammar, choice) for choice in choices)
    assert not any(matches(library, grammar, text) for text in ("", "ye", "yes,", "(x)"))


def test_a_grammar_without_recursion(library: LlguidanceLibrary) -> None:
    grammar = write_grammar(corpus_guided.CHESS_GRAMMAR)
    assert grammar is not None
    assert matches(library, grammar, "1. e4 e5\n2. Nf3 Nc6\n") and not matches(library, grammar, "1. e9 e5\n2. a4 a5\n")


def test_a_schema(library: LlguidanceLibrary) -> None:
    schema = parse_json_schema(corpus_guided.to_guided({"guided_json": corpus_guided.TEN_PROPERTIES}))
    assert schema is not None
    grammar = write_schema(schema)
    assert matches(library, grammar, json.dumps({"id": 1, "name": "a", "active": True, "role": "editor"}))
    assert not matches(library, grammar, json.dumps({"id": 1, "name": "a", "active": True, "role": "king"}))


def test_an_output_can_be_followed_until_it_leaves_the_constraint(library: LlguidanceLibrary) -> None:
    first, second = library.start(write_regex("ab+")), library.start(write_regex("ab+"))
    assert first.consume("a", ()) and not first.is_accepting()
    assert first.consume("b", ()) and first.is_accepting() and not first.is_complete()
    assert not first.consume("c", ())
    assert second.consume("abb", ())
    done = library.start(write_regex("x"))
    assert done.consume("x", ()) and done.is_complete()


def test_blanks_that_llama_cpp_does_not_see() -> None:
    pieces = {1: b" {", 2: b' "a', 3: b'": ', 4: b"5}"}
    library = LlguidanceLibrary(xllamacpp.xllamacpp.__file__, pieces.__getitem__)
    follower = library.start('%llguidance {}\nstart: /\\{"a": ?5\\}/')
    assert all(follower.consume(pieces[token].decode(), [token]) for token in pieces) and follower.is_accepting()
    assert not library.start('%llguidance {}\nstart: "b"').consume(" a", [2])


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (write_schema({"type": "odd"}), "odd"),
        ("%llguidance {}\nstart: /(/", "unclosed"),
        ("%llguidance {}\nstart: missing", "missing"),
    ],
)
def test_an_error_has_a_reason(library: LlguidanceLibrary, grammar: str, reason: str) -> None:
    for _ in range(2):
        with pytest.raises(ConstraintError) as caught:
            library.start(grammar)
        assert reason in caught.value.reason and not caught.value.is_too_complex
        assert "\n" not in caught.value.reason and "%llguidance" not in caught.value.reason


@pytest.mark.parametrize("schema", [corpus_guided.make_optional_properties(1_000)])
def test_a_schema_that_is_too_complex_is_refused_before(library: LlguidanceLibrary, schema: Any) -> None:
    adapted = parse_json_schema(corpus_guided.to_guided({"guided_json": schema}))
    assert adapted is not None
    with pytest.raises(ConstraintError) as caught:
        library.start(write_schema(adapted))
    assert caught.value.is_too_complex


@pytest.mark.parametrize(("name", "fields"), [*corpus_guided.EITHER, *corpus_guided.ORDINARY])
def test_no_constraint_takes_long(library: LlguidanceLibrary, name: str, fields: dict[str, Any]) -> None:
    guided = corpus_guided.to_guided(fields)
    grammar = write_constraint(guided, parse_json_schema(guided))
    if grammar is None:
        return
    began = time.process_time()
    try:
        library.start(grammar)
    except ConstraintError as problem:
        assert problem.is_too_complex and (name, fields) in corpus_guided.EITHER
    assert time.process_time() - began < 5
