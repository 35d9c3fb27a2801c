from __future__ import annotations

import pytest

from enginebay.engines.llamacpp.gbnf import choice_to_gbnf, regex_to_gbnf
from enginebay.errors import InvalidRequest, Unsupported


@pytest.mark.parametrize(
    ("pattern", "grammar"),
    [
        (r"^\d{3}-[a-z]+$", r'[0-9]{3} "\x2D" [a-z]+'),
        (r"(cat|dog)s?", '("c" "a" "t" | "d" "o" "g") "s"?'),
        (r"(?:x|)", '("x" | "")'),
        (r"(?P<year>\d{4})", "([0-9]{4})"),
        (r"a.b\.", r'"a" [^\n] "b" "."'),
        (r"a*?b{2,}c{,3}d{1,2}", '"a"* "b"{2,} "c"{0,3} "d"{1,2}'),
        (r"{a}", '"{" "a" "}"'),
        (r"\$", '"$"'),
        (r"\\$", r'"\\"'),
        (r"\W\S", r"[^a-zA-Z0-9_] [^ \t\n\r\x0B\x0C]"),
        (r"é日😀", r'"\xE9" "\u65E5" "\U0001F600"'),
        (r"\x41\u00e9\n", r'"A" "\xE9" "\n"'),
        ("", '""'),
    ],
)
def test_translates(pattern: str, grammar: str) -> None:
    assert regex_to_gbnf(pattern) == f"root ::= {grammar}\n"


@pytest.mark.parametrize(
    ("pattern", "grammar"),
    [
        (r"[\w.-]", r"[a-zA-Z0-9_.\x2D]"),
        (r"[a-c\-z]", r"[a-c\x2Dz]"),
        (r"[-a]", r"[\x2Da]"),
        (r"[^-a]", r"[^\x2Da]"),
        (r"[]a]", r"[\]a]"),
        (r"[^\"\\\]]", r"[^\"\\\]]"),
        (r"[a^]", r"[a\x5E]"),
        (r"[\n\t]", r"[\n\t]"),
    ],
)
def test_translates_classes(pattern: str, grammar: str) -> None:
    assert regex_to_gbnf(pattern) == f"root ::= {grammar}\n"


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        (r"(?=a)b", "lookahead"),
        (r"(?<!a)b", "lookbehind"),
        (r"(?i)a", "inline flag"),
        (r"(a)\1", "backreference"),
        (r"\bfoo", r"'\\b'"),
        (r"a++", "possessive"),
        (r"a^b", r"'\^'"),
        (r"[\S]", r"'\\S'"),
        (r"[[:alpha:]]", "POSIX"),
        (r"\p{L}", r"'\\p'"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(pattern: str, named: str) -> None:
    with pytest.raises(Unsupported, match=named) as refusal:
        regex_to_gbnf(pattern)
    assert refusal.value.param == "guided_regex" and refusal.value.hint


@pytest.mark.parametrize("pattern", ["(a", "a)", "[a", "a**", "*a", "a{3,2}", "a\\", r"\xZZ"])
def test_mistakes_are_the_requests_fault(pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        regex_to_gbnf(pattern)


def test_choices_are_quoted() -> None:
    assert choice_to_gbnf(('say "hi"', "a\nb")) == 'root ::= "say \\"hi\\"" | "a\\x0Ab"\n'
