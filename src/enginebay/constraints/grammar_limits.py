"""Checks that a GBNF grammar is safe to compile and to follow: size, nesting, references, left recursion, ambiguity."""

from __future__ import annotations

import re
from functools import lru_cache

from enginebay.constraints.gbnf_syntax import GrammarFault, parse_gbnf
from enginebay.constraints.grammar_ambiguity import TooAmbiguous, check_ambiguity
from enginebay.constraints.grammar_regex import to_regex
from enginebay.constraints.grammar_rules import check_left_recursion, flatten_rules
from enginebay.constraints.regex_limits import ConstraintLimits
from enginebay.errors import InvalidRequest, Unsupported
from enginebay.util.limit_errors import format_limit_hint, make_limit_error

_CACHE_SIZE = 256
_LARK = re.compile(r"\s*+(?:%llguidance|(?://[^\n]*+\s*+)*+[?!]?\w++[ \t]*+:(?!:))")  # its start, or its first rule


def check_grammar(text: str, limits: ConstraintLimits, param: str) -> None:
    """Raise `InvalidRequest` or `Unsupported` if this grammar must not reach an engine."""
    size = len(text.encode())
    if size > limits.grammar_bytes:
        raise make_limit_error(f"{param} has {size} bytes", limits, "grammar_bytes", param)
    if "\0" in text:  # ends the string in an engine written in C
        raise InvalidRequest(f"{param} has a NUL character", "remove it", param=param)
    if _LARK.match(text):
        raise Unsupported("only GBNF grammars are supported", "rewrite the grammar in GBNF", param=param)
    fault = _find_fault(text, limits.grammar_depth, limits.grammar_rules, limits.grammar_symbols, limits.grammar_stacks)
    if fault is not None:
        hint = format_limit_hint(fault.limit, fault.hint) if fault.limit else fault.hint
        raise InvalidRequest(fault.message, hint, param=param)


@lru_cache(_CACHE_SIZE)
def _find_fault(text: str, depth: int, max_rules: int, max_symbols: int, max_stacks: int) -> GrammarFault | None:
    try:
        rules = parse_gbnf(text, depth)
        if len(rules) > max_rules:
            message = f"the grammar has {len(rules)} rules; the maximum is {max_rules}"
            raise GrammarFault(message, "use fewer", "grammar_rules")
        flat = flatten_rules(rules, max_symbols)
        check_left_recursion(flat)
        if to_regex(rules) is None:
            check_ambiguity(flat, max_stacks)
    except GrammarFault as fault:
        return fault.with_traceback(None)
    except TooAmbiguous:
        return GrammarFault(
            f"the grammar is too ambiguous: after a short text, more than {max_stacks} parses are possible",
            "rewrite it so that each text has one parse",
            "grammar_stacks",
        )
    return None
