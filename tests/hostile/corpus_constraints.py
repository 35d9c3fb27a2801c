"""Grammars, regexes and choices that are too deep, too large, ambiguous, empty or malformed."""

from __future__ import annotations

from typing import Any

from tests.hostile.hostile_case import (
    COMPLETIONS,
    MAX_TOKENS,
    RESPONSES,
    Expected,
    HostileCase,
    TextCheck,
    check_choice,
    check_regex,
    make_case,
    make_literal_case,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _grammar(name: str, text: str, expected: Expected = "any", check: TextCheck | None = None) -> HostileCase:
    return make_case(f"grammar-{name}", {"guided_grammar": text}, expected, check=check)


def _regex(name: str, text: str, expected: Expected = "any", check: TextCheck | None = None) -> HostileCase:
    return make_case(f"regex-{name}", {"guided_regex": text}, expected, check=check)


def _choice(name: str, choices: Any, expected: Expected = "any") -> HostileCase:
    check = check_choice(choices) if isinstance(choices, list) and expected != "refused" else None
    return make_case(f"choice-{name}", {"guided_choice": choices}, expected, check=check)


def _chain(length: int) -> str:
    """Rules that each name the next one."""
    rules = [f"r{number} ::= r{number + 1}" for number in range(length)]
    return "\n".join(["root ::= r0", *rules, f'r{length} ::= "a"'])


AMBIGUOUS = 'root ::= s\ns ::= s2 s2 | "a"\ns2 ::= "a" s | "a" | "a" s2 s2'
ONLY_A = check_regex("a*", "a")
ONLY_AB = check_regex("[ab]*", "ab")

GRAMMARS = [
    _grammar("deep-parentheses", "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000, "refused"),
    _grammar("parentheses-at-the-size-limit", "root ::= " + "(" * 32_000 + '"a"' + ")" * 32_000, "refused"),
    _grammar("parentheses-a-thousand-deep", "root ::= " + "(" * 1000 + '"a"' + ")" * 1000, check=ONLY_A),
    _grammar("parentheses-fifty-deep", "root ::= " + "(" * 50 + '"a"' + ")" * 50, check=check_regex("a")),
    _grammar("parentheses-never-closed", "root ::= " + "(" * 20_000, "refused"),
    _grammar("parentheses-never-opened", 'root ::= "a"' + ")" * 20_000, "refused"),
    _grammar("ambiguous", AMBIGUOUS, check=ONLY_A),
    _grammar("ambiguous-pairs", 'root ::= s\ns ::= "a" | s1 s1 | s1\ns1 ::= "a" s | "a"', check=ONLY_A),
    _grammar("ambiguous-stars", "root ::= (" + "[a-z]* " * 200 + ")", check=check_regex("[a-z]*", LETTERS)),
    _grammar("ambiguous-options", 'root ::= ("a"? ' + '"a"? ' * 2000 + ")", check=ONLY_A),
    _grammar("ambiguous-alternatives", "root ::= x x x x x x x x x x\nx ::= " + " | ".join(['"a"'] * 500), check=ONLY_A),
    _grammar("left-recursion", 'root ::= root "a" | "a"', "refused"),
    _grammar("left-recursion-over-rules", 'root ::= x "a"\nx ::= y\ny ::= root | "b"', "refused"),
    _grammar("left-recursion-behind-an-option", 'root ::= "b"? root "a" | "a"', "refused"),
    _grammar("left-recursion-behind-an-empty-rule", 'root ::= x root "a" | "a"\nx ::= ""', "refused"),
    _grammar("left-recursion-alone", "root ::= root", "refused"),
    _grammar("no-way-to-end", 'root ::= "a" root', check=ONLY_A),
    _grammar("right-recursion", 'root ::= "a" root | "b"', check=check_regex("a*b", "ab")),
    _grammar("nested-recursion", 'root ::= "(" root ")" | "a"', check=check_regex(r"\(*a\)*", "(a)")),
    _grammar("empty-loop", 'root ::= ("")*', "any"),
    _grammar("nested-empty-loop", 'root ::= ((""*)*)* "a"', "any", ONLY_A),
    _grammar("nested-stars", 'root ::= ((("a"*)*)*)*', "any", ONLY_A),
    _grammar("nested-plus", 'root ::= ((("a"+)+)+)+', "any", ONLY_A),
    _grammar("undefined-rule", "root ::= nowhere", "refused"),
    _grammar("undefined-rule-beside-a-good-one", 'root ::= "a" | nowhere', "refused"),
    _grammar("no-root", 'top ::= "a"', "refused"),
    _grammar("root-twice", 'root ::= "a"\nroot ::= "b"', "any", ONLY_AB),
    _grammar("empty-text", " \n\n ", "refused"),
    _grammar("comments-alone", "# nothing\n" * 3000, "refused"),
    _grammar("prose", "Please write a poem. " * 100, "refused"),
    _grammar("giant-repeat", 'root ::= "a"{1000000000}', "refused"),
    _grammar("giant-range", 'root ::= "a"{0,1000000000}', "refused"),
    _grammar("nested-repeats", 'root ::= (("a"{1,1000}){1,1000}){1,1000}', "any", ONLY_A),
    _grammar("nested-repeats-over-rules", 'root ::= x{500}\nx ::= y{500}\ny ::= z{500}\nz ::= "a"{500}', "any", ONLY_A),
    _grammar("options-repeated", 'root ::= ("a"? "b"? "c"? "d"? "e"?){1,100}', "any", check_regex("[a-e]*", "abcde")),
    _grammar("repeat-of-ten-thousand", 'root ::= "a"{10000}', "any", ONLY_A),
    _grammar("repeat-backwards", 'root ::= "a"{5,2}', "refused"),
    _grammar("repeat-negative", 'root ::= "a"{-1}', "refused"),
    _grammar("repeat-overflow", 'root ::= "a"{99999999999999999999}', "refused"),
    _grammar("repeat-of-nothing", "root ::= *", "refused"),
    _grammar("exponential-rules", "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(60))
             + '\nr60 ::= "a"', "any", ONLY_A),
    _grammar("exponential-options", "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1}? r{n + 1}?" for n in range(40))
             + '\nr40 ::= "a"', "any", ONLY_A),
    _grammar("chain-of-rules", _chain(2000), "any", ONLY_A),
    _grammar("chain-of-rules-short", _chain(60), "any", ONLY_A),
    _grammar("many-alternatives", "root ::= " + " | ".join(f'"a{n}"' for n in range(6000)), "any",
             check_regex(r"a\d+", "a0123456789")),
    _grammar("many-rules", "root ::= r0\n" + "\n".join(f'r{n} ::= "a" | r{n + 1}' for n in range(2500))
             + '\nr2500 ::= "a"', "any", ONLY_A),
    _grammar("nul", 'root ::= "a\x00b"', "refused"),
    _grammar("nul-escaped", 'root ::= "a\\x00b"', "any"),
    _grammar("invalid-escape", 'root ::= "\\q"', "any"),
    _grammar("truncated-escape", 'root ::= "\\x"', "refused"),
    _grammar("unended-string", 'root ::= "aaa', "refused"),
    _grammar("unended-class", "root ::= [a-z", "refused"),
    _grammar("class-of-nothing", "root ::= []", "any"),
    _grammar("class-that-matches-nothing", "root ::= [^\\x00-\\U0010ffff]", "any", check_regex("")),
    _grammar("class-backwards", "root ::= [z-a]", "any", check_regex("")),
    _grammar("code-point-out-of-range", 'root ::= "\\UFFFFFFFF"', "any"),
    _grammar("lone-surrogate-escape", 'root ::= "\\ud800"', "any"),
    _grammar("only-a-bom", "\ufeff", "refused"),
    _grammar("right-to-left-names", 'root ::= שלום\nשלום ::= "a"', "any", ONLY_A),
    _grammar("long-name", f"root ::= {'x' * 50_000}\n{'x' * 50_000} ::= \"a\"", "any", ONLY_A),
    _grammar("long-literal", f'root ::= "{"a" * 60_000}"', "any", ONLY_A),
    _grammar("lark", 'start: "a" | "b"\n%import common.WS', "refused"),
    _grammar("llguidance-prefix", '%llguidance {}\nstart: "a"', "refused"),
    make_literal_case("grammar-lone-surrogate", "guided_grammar", r'"root ::= \"\ud800\""'),
    make_case("grammar-in-structured-outputs", {"structured_outputs": {"grammar": AMBIGUOUS}}, check=ONLY_A),
    make_case("grammar-in-completions", {"guided_grammar": AMBIGUOUS}, path=COMPLETIONS, check=ONLY_A),
    make_case("grammar-streamed", {"guided_grammar": AMBIGUOUS, "stream": True}),
    make_case("grammar-of-many-choices", {"guided_grammar": AMBIGUOUS, "n": 8, "temperature": 1}, check=ONLY_A),
]  # fmt: skip

REGEXES = [
    _regex("optional-any", "(?:.?){1000}", "any"),
    _regex("optional-letters", "(?:[a-z]?){1000}", "any", check_regex("[a-z]*", LETTERS)),
    _regex("optional-five", "(?:a?b?c?d?e?){1,100}", "any", check_regex("[a-e]*", "abcde")),
    _regex("optional-nested", "(?:(?:(?:a?){10}b?){10}c?){10}", "any", check_regex("[abc]*", "abc")),
    _regex("optional-words", "(?:(?:ab)?(?:abc)?){1,300}", "any", check_regex("[abc]*", "abc")),
    _regex("optional-tail", "a?" * 500 + "a" * 500, "any", ONLY_A),
    _regex("six-thousand-alternatives", "|".join(f"a{n}" for n in range(6000))[:60_000], "refused"),
    _regex("three-hundred-alternatives", "|".join(f"a{n}b" for n in range(300)), "any", check_regex(r"a\d+b", "ab0123456789")),
    _regex("same-alternatives", "|".join(["a"] * 600), "any", ONLY_A),
    _regex("alternatives-repeated", "(?:" + "|".join(["a", "aa", "aaa", "aaaa"] * 20) + "){1,50}", "any", ONLY_A),
    _regex("catastrophic-plus", "(a+)+$", "any", ONLY_A),
    _regex("catastrophic-star", "(a*)*b", "any", ONLY_AB),
    _regex("catastrophic-alternatives", "(a|a)*b", "any", ONLY_AB),
    _regex("catastrophic-dots", "(.*)*x(.*)*y(.*)*z", "any"),
    _regex("dots", ".*.*.*.*.*.*.*.*.*.*.*.*", "any"),
    _regex("counted-dots", ".{0,500}.{0,500}.{0,500}", "any"),
    _regex("counted-classes", "[a-z]{1,2000}[a-z]{1,2000}[a-z]{1,2000}", "any", check_regex("[a-z]+", LETTERS)),
    _regex("nested-counts", "((a{1,100}){1,100}){1,100}", "any", ONLY_A),
    _regex("nested-counts-exact", "(a{1000}){1000}", "refused"),
    _regex("huge-count", "a{1000000000}", "refused"),
    _regex("count-overflow", "a{99999999999999999999}", "refused"),
    _regex("count-backwards", "a{2,1}", "refused"),
    _regex("deep-groups", "(" * 900 + "a" + ")" * 900, "any", ONLY_A),
    _regex("groups-never-closed", "(" * 2000, "refused"),
    _regex("class-never-closed", "[", "refused"),
    _regex("class-that-matches-nothing", "[^\\x00-\\U0010ffff]", "any", check_regex("(?!)")),
    _regex("class-of-all-but-spaces-and-others", r"[^\s\S]", "any", check_regex("(?!)")),
    _regex("class-backwards", "[z-a]", "refused"),
    _regex("class-of-everything", r"[\s\S]{1,8}", "any"),
    _regex("nul", "a\x00b", "any"),
    _regex("nul-escaped", "a\\x00b", "any"),
    _regex("control-characters", "[\x01-\x1f]{3}", "any"),
    _regex("newline", "\n{3}", "any"),
    _regex("anchor-inside", "a^b$c", "any"),
    _regex("anchors-around", "^a{3}$", "any", check_regex("a{3}", "a")),
    _regex("anchors-in-alternatives", "^a|b$|^c$", "any"),
    _regex("lookahead", "(?=a)b", "any", check_regex("(?!)")),
    _regex("lookbehind", "(?<=a)b", "any"),
    _regex("backreference", r"(a+)\1\1\1", "any"),
    _regex("named-groups", "(?P<a>x)(?P<a>y)", "any"),
    _regex("flags", "(?i)(?s)(?m)(?x)a b", "any"),
    _regex("recursion", "(?R)", "any"),
    _regex("conditional", "(?(1)a|b)", "any"),
    _regex("possessive", "a*+a", "any"),
    _regex("unicode-property", r"\p{L}{1,500}", "any"),
    _regex("unknown-property", r"\p{Nothing}", "any"),
    _regex("surrogate-escape", r"[\ud800-\udfff]", "any"),
    _regex("astral", "[\U00010000-\U0010ffff]{4}", "any"),
    _regex("emoji", "(?:👩‍👩‍👧‍👦){1,50}", "any"),
    _regex("empty-alternatives", "||||a||||", "any", ONLY_A),
    _regex("empty-group", "()()()", "any"),
    _regex("trailing-backslash", "a\\", "refused"),
    _regex("quantifier-first", "*a", "refused"),
    _regex("quantifiers-stacked", "a**", "refused"),
    _regex("never-ends", "a{5000,}", "any", ONLY_A),
    _regex("too-long", "a" * 100_000, "refused"),
    _regex("quotes", r'["\\\[\]^-]{1,9}', "any"),
    make_literal_case("regex-lone-surrogate", "guided_regex", r'"\ud800+"'),
    make_case("regex-is-empty", {"guided_regex": ""}, "refused"),
    make_case("regex-is-a-number", {"guided_regex": 7}, "refused"),
    make_case("regex-streamed", {"guided_regex": "(?:[a-z]?){1000}", "stream": True}),
    make_case("regex-in-completions", {"guided_regex": "(?:.?){1000}"}, path=COMPLETIONS),
    make_case("regex-in-structured-outputs", {"structured_outputs": {"regex": "(?:.?){1000}"}}),
]  # fmt: skip

CHOICES = [
    _choice("a-thousand", [f"choice {number}" for number in range(1024)]),
    _choice("six-thousand", [f"choice {number}" for number in range(6000)], "refused"),
    _choice("none", [], "refused"),
    _choice("empty", [""], "refused"),
    _choice("one-empty", ["a", ""], "refused"),
    _choice("twins", ["a"] * 1000),
    _choice("prefixes", ["a" * length for length in range(1, 500)]),
    _choice("nul", ["a\x00b", "c"]),
    _choice("nul-alone", ["\x00"]),
    _choice("control-characters", ["\x01\x02", "\x7f", "\r\n"]),
    _choice("quotes", ['"', "'", "\\", '\\"', '"""', "`"]),
    _choice("brackets", ["[", "]", "[^a]", "{}", "(", "|"]),
    _choice("grammar-injection", ['" | "x', '"\nroot ::= "x"', "root ::= x"]),
    _choice("special-tokens", ["<|im_end|>", "<|endoftext|>", "</s>"]),
    _choice("astral", ["👩‍👩‍👧‍👦", "\U0010ffff", "\ufeff"]),
    _choice("long", ["a" * 100_000]),
    _choice("many-long", [chr(97 + n % 26) * 4000 + str(n) for n in range(500)]),
    _choice("numbers", [1, 2, 3], "refused"),
    _choice("object", {"a": 1}, "refused"),
    _choice("spaces", [" ", "  ", "   ", "\t"]),
    make_literal_case("choice-lone-surrogate", "guided_choice", r'["\ud800"]'),
    make_case("choice-in-completions", {"guided_choice": [f"c{n}" for n in range(1000)]}, path=COMPLETIONS,
              check=check_choice([f"c{n}" for n in range(1000)])),
    make_case("choice-with-min-tokens", {"guided_choice": ["a"], "min_tokens": MAX_TOKENS}),
    make_case("choice-with-no-repeats", {"guided_choice": ["aaaaaaaaaaaa"], "no_repeat_ngram_size": 1, "temperature": 1}),
    make_case("choice-with-bias-against-it", {"guided_choice": ["yes", "no"], "logit_bias": {str(n): -100 for n in range(250)}},
              check=check_choice(["yes", "no"])),
    make_case("choice-and-grammar", {"guided_choice": ["a"], "guided_grammar": 'root ::= "b"'}, "refused"),
    make_case("choice-in-responses", {"guided_choice": ["a"]}, "refused", path=RESPONSES),
]  # fmt: skip

CASES = [*GRAMMARS, *REGEXES, *CHOICES]
