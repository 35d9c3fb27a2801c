"""Which regexes may reach an engine: length, syntax, size, and repeats that explode."""

from __future__ import annotations

import re
import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.sections.server_section import ServerLimits
from enginebay.constraints.regex_charsets import ESCAPED_CLASSES, make_char_bit, make_range_bits
from enginebay.constraints.regex_limits import check_regex, count_states
from enginebay.constraints.regex_syntax import MAX_NESTING
from enginebay.errors import InvalidRequest, RequestError, Unsupported

LIMITS = ServerLimits()


def refusal(pattern: object, limits: ServerLimits = LIMITS) -> RequestError:
    with pytest.raises(RequestError) as error:
        check_regex(pattern, limits, "guided_regex")
    assert error.value.param == "guided_regex" and error.value.hint
    return error.value


SAFE = [
    "",
    r"^\d{3}-[a-z]+$",
    r"(cat|dog)s?",
    r"(\w+,)*",
    r"\d+(\.\d+)*",
    r"(.|\n)*",
    r"[\s\S]*",
    r"(cat|car)*",
    r"(foo|foobar)*",
    r"(a|ab)*",
    r"(a+ab)*",
    r"(?:\S+\s+)*\S+",
    r"([A-Z][a-z]*\s?)+",
    r"(\d{3})*",
    r"(\d{1,3}\.)+",
    r"(<[^>]+>[^<]*)*",
    r"(- .+\n)*",
    r"\[(\d+(, \d+)*)?\]",
    r"([^,\n]*,)*[^,\n]*",
    r"(\w+\s?){1,20}",  # bounded
    r'"(?:[^"\\]|\\.)*"',
    r"(一|二|三)*",
    r"^(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$",
    r"[^\s@]+@[^\s@]+\.[^\s@]+",
    r"(0|[1-9]\d*)(-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?",
    r"(?P<year>\d{4})-(?<month>\d\d)",
    r"[]a]+[^]]",
    r"[a-\d]",
    r"[\w-]+",
    r"a{,3}{",
    r"{a}",
    r"\p{L}+\bx$|^y",
    r"a??b*?c+?",
    r"\x41\u00e9\n\U0001F600",
]


@pytest.mark.parametrize("pattern", SAFE)
def test_ordinary_patterns_pass(pattern: str) -> None:
    check_regex(pattern, LIMITS, "guided_regex")


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+",
        r"(a+)+$",
        r"([a-zA-Z]+)*",
        r"(a|a)*",
        r"(a|aa)+",
        r"(a|b|ab)*c",
        r"(foo|bar|foobar)*",
        r"((a|ab|ac|c)d?)*",
        r"(\w|\d)+",
        r"(.|\s)*",
        r"(\w|ab)*",
        r"(x\w*|x\w*)*",
        r"(\w+\s?)*",
        r"(\s?\w+)*",
        r"(.*,)*",
        r"(\w+\d)*",
        r"(a+a+b)*",
        r"(a+ba+)*",
        r"(a{1,5})*",
        r"(x+x+)+y",
        r"((a+)b?)+",
        r"((a+){2})*",
        r"(?:(?:\w+)-?)*",
        r'(\\.|[^"])*',
        r'([^"\\]+|\\.)*',
        r"^(([a-z])+.)+[A-Z]([a-z])+$",
        r"(a+){2,}",
        r"(é+)+",
        r"(ab|a.)*",
        r"(b*c|c)+",
        r"(.|(c){2})*",
        r"((b(b|c))|.)+",
        r"(b(a?|b))*",
        r"(c((ab)*)?)*",
        r"([ab](b|c*))*",
    ],
)
def test_ambiguous_unbounded_repeats_are_refused(pattern: str) -> None:
    error = refusal(pattern)
    assert isinstance(error, InvalidRequest)
    assert re.search(r"unbounded repeat at position \d+ that can split a text in many ways", error.message)
    assert "(a+,)+" in error.hint


@pytest.mark.parametrize(
    "pattern", [r"(a*)*", r"(a?)+", r"(|a)*", r"()*", r"(a*b*)*", r"(^)*", r"(\b){3,}", r"(a{0})+"]
)
def test_unbounded_repeats_of_empty_matches_are_refused(pattern: str) -> None:
    assert "whose content may be empty" in refusal(pattern).message


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        (r"(a{1,1000}){1,1000}", "1000000"),
        (r"((((a{99}){99}){99}){99}){99}", "9509900499"),
        (r"(\d{100},){201}", "20301"),
        (r"a{20001,}", "20001"),
        (r"a{99999999999999999999}", "over 1000000000000"),
        ("(" * 40 + "a" + "){9999}" * 40, "over 1000000000000"),
    ],
)
def test_the_size_of_the_automaton_is_bounded(pattern: str, states: str) -> None:
    assert refusal(pattern).message == f"the regex needs about {states} states; the maximum is 20000"


@pytest.mark.parametrize(
    ("pattern", "states"),
    [("", 0), ("abc", 3), ("a|bc", 4), ("(ab){3}c", 7), ("a{2,5}", 5), ("a*b+c?", 3), ("a{3,}", 3), ("[a-z]{10}.", 11)],
)
def test_states_are_counted(pattern: str, states: int) -> None:
    assert count_states(pattern, LIMITS, "p") == states


def test_length_is_checked_first() -> None:
    assert refusal("(" * 2049).message == "the regex is 2049 characters long; the maximum is 2048"
    check_regex("a" * 2048, LIMITS, "p")
    assert "the maximum is 5" in refusal("aaaaaa", ServerLimits(regex_chars=5)).message


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("(a", "an unclosed '(' at position 0"),
        ("a(b(c)", "an unclosed '(' at position 1"),
        ("a)", "an unmatched ')' at position 1"),
        ("[a", "an unclosed '[' at position 0"),
        ("[", "an unclosed '['"),
        ("[]", "an unclosed '['"),
        ("a**", "two consecutive repeats"),
        ("a{2}{3}", "two consecutive repeats"),
        ("a*?*", "two consecutive repeats"),
        ("*a", "nothing to repeat at position 0"),
        ("(+)", "nothing to repeat at position 1"),
        ("a|?", "nothing to repeat"),
        ("{2}", "nothing to repeat"),
        ("a{3,2}", "the invalid repeat {3,2}"),
        ("a\\", "a trailing backslash"),
        ("[\\", "a trailing backslash"),
        (r"\xZZ", r"'\xZZ'"),
        (r"\x4", r"'\x4'"),
        (r"\u00_1", r"'\u00_1'"),
        (r"\UFFFFFFFF", r"'\UFFFFFFFF'"),
        ("[z-a]", "the invalid range z-a"),
        ("(?<name", "without a valid name"),
        ("(?P<1>a)", "without a valid name"),
        (r"\pL", "without a property"),
    ],
)
def test_syntax_errors_name_their_position(pattern: str, expected: str) -> None:
    error = refusal(pattern)
    assert isinstance(error, InvalidRequest) and expected in error.message


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"(?=a)b", "lookahead"),
        (r"(?!a)b", "lookahead"),
        (r"(?<=a)b", "lookbehind"),
        (r"(?<!a)b", "lookbehind"),
        (r"(a)\1", "backreference"),
        (r"(?P<a>x)(?P=a)", "backreference"),
        (r"\k<a>", "backreference"),
        (r"(?i)a", "inline flag"),
        (r"(?>a)", "atomic group"),
        (r"(?(1)a)", "conditional"),
        (r"a++", "possessive"),
        (r"[[:alpha:]]", "POSIX"),
        (r"\q", r"'\q'"),
    ],
)
def test_unsupported_features_are_named(pattern: str, expected: str) -> None:
    error = refusal(pattern)
    assert isinstance(error, Unsupported) and expected in error.message


def test_nesting_is_bounded_since_engines_recurse() -> None:
    check_regex("(" * MAX_NESTING + "a" + ")" * MAX_NESTING, LIMITS, "p")
    assert f"more than {MAX_NESTING} deep" in refusal("(" * 1000 + "a" + ")" * 1000).message


@pytest.mark.parametrize("pattern", [None, 5, ["a"], b"a", True])
def test_a_regex_must_be_a_string(pattern: object) -> None:
    assert refusal(pattern).message == "the regex is not a string"


@pytest.mark.parametrize("unit", ["a", "(a)", "a{1,2}b", "[a-z]", "ab|", "{", "a{1", "é.|", "(?:x|y)+,", "(?<a>x)"])
def test_time_grows_no_faster_than_the_length(unit: str) -> None:
    limits = ServerLimits(regex_chars=10**6, regex_states=10**9)

    def seconds(times: int) -> float:
        began = time.process_time()
        check_regex(unit * times, limits, "p")
        return time.process_time() - began

    seconds(100)
    assert min(seconds(16_000) for _ in range(2)) < 40 * max(min(seconds(2_000) for _ in range(3)), 0.002)


@given(st.text(alphabet=st.sampled_from("ab()[]{}|*+?^$\\.,-0123:<=!Pdw"), max_size=40))
def test_any_text_is_accepted_or_refused_with_a_message(pattern: str) -> None:
    try:
        check_regex(pattern, LIMITS, "p")
    except RequestError as error:
        assert error.message and error.param == "p"


@given(st.text(alphabet=st.sampled_from("ab()[]|*+?."), max_size=14))
def test_what_passes_is_valid_for_python_too(pattern: str) -> None:
    try:
        check_regex(pattern, LIMITS, "p")
    except RequestError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about set syntax that a later Python may change
        re.compile(pattern)


@given(st.characters(), st.characters(), st.characters())
def test_ranges_contain_all_their_characters(one: str, two: str, three: str) -> None:
    low, middle, high = sorted((one, two, three))
    assert make_range_bits(low, high) & make_char_bit(middle)
    if ord(high) < 128 and low > "\0":
        assert not make_range_bits(low, high) & make_char_bit(chr(ord(low) - 1))


def test_escaped_classes_match_python() -> None:
    for name, bits in ESCAPED_CLASSES.items():
        for code in range(128):
            assert bool(bits & make_char_bit(chr(code))) == bool(re.match(f"\\{name}", chr(code), re.ASCII)), (
                name,
                code,
            )
