"""Translate a regular expression to GBNF, llama.cpp's grammar language. The whole output must match.

llama.cpp does not support regular expressions. Lazy and greedy repeats are equivalent here, since only the set of
matching texts matters. Constructs without a counterpart (look-around, back references, flags) are rejected.
"""

from __future__ import annotations

from enginebay.errors import InvalidRequest, Unsupported

_CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": " \\t\\n\\r\\x0B\\x0C"}
_CONTROLS = {"n": "\\n", "t": "\\t", "r": "\\r", "f": "\\x0C", "v": "\\x0B", "a": "\\x07", "0": "\\x00"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_GROUP_KINDS = {
    "?=": "look-ahead", "?!": "look-ahead", "?<": "look-behind", "?P": "a back reference", "?(": "a condition",
}  # fmt: skip
_ANCHOR_ESCAPES = ("b", "B", "A", "Z")


def regex_to_gbnf(pattern: str) -> str:
    """Return a grammar for the texts that `pattern` fully matches."""
    return f"root ::= {_RegexToGbnf(_strip_end_anchors(pattern)).parse()}\n"


def to_terminal(text: str) -> str:
    """Return a GBNF terminal for exactly this text."""
    return '"' + "".join(map(_escape_char, text)) + '"'


def choice_to_gbnf(choices: tuple[str, ...]) -> str:
    """Return a grammar for exactly one of these texts."""
    return f"root ::= {' | '.join(to_terminal(choice) for choice in choices)}\n"


def _strip_end_anchors(pattern: str) -> str:
    """Strip `^` and `$` from the ends: the whole output always has to match."""
    for anchor in ("^", "\\A"):
        pattern = pattern.removeprefix(anchor)
    for anchor in ("$", "\\Z"):
        body = pattern.removesuffix(anchor)
        backslashes = len(body) - len(body.rstrip("\\"))
        if body != pattern and backslashes % 2 == 0:
            return body
    return pattern


def _escape_char(char: str) -> str:
    """Escape one character for a terminal or a class. GBNF has no escape for '^' and '-', so they become hex."""
    code = ord(char)
    if char in '\\"[]':
        return "\\" + char
    if 0x20 <= code < 0x7F and char not in "^-":
        return char
    if code <= 0xFF:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


class _RegexToGbnf:
    """Single-pass translator."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0

    def parse(self) -> str:
        grammar = self.parse_alternatives()
        if self.position < len(self.pattern):
            raise self.make_syntax_error("an unmatched ')'")
        return grammar

    def parse_alternatives(self) -> str:
        options = [self.parse_sequence()]
        while self.next_is("|"):
            self.position += 1
            options.append(self.parse_sequence())
        return " | ".join(options)

    def parse_sequence(self) -> str:
        items: list[str] = []
        while self.position < len(self.pattern) and self.pattern[self.position] not in "|)":
            items.append(self.parse_item())
        return " ".join(items) or '""'

    def parse_item(self) -> str:
        atom = self.parse_atom()
        count = self.parse_quantifier()
        return f"{atom}{count}" if not count or atom[0] in '["(' else f"({atom}){count}"

    def parse_atom(self) -> str:
        char = self.advance()
        if char == "(":
            return self.parse_group()
        if char == "[":
            return self.parse_char_class()
        if char == ".":
            return "[^\\n]"
        if char == "\\":
            return self.parse_escape()
        if char in "*+?":
            raise self.make_syntax_error(f"'{char}' with nothing to repeat")
        if char in "^$":
            raise self.make_unsupported(f"'{char}' inside the pattern", "anchors only at the start and the end")
        return to_terminal(char)

    def parse_group(self) -> str:
        if self.next_is("?"):
            self.skip_group_prefix()
        inner = self.parse_alternatives()
        if not self.next_is(")"):
            raise self.make_syntax_error("an unclosed '('")
        self.position += 1
        return f"({inner})"

    def skip_group_prefix(self) -> None:
        """Skip `?:` and `?P<name>`. Rejects every other `(?`, since it changes what matches."""
        rest = self.pattern[self.position :]
        if rest.startswith("?:"):
            self.position += 2
            return
        named = rest.startswith(("?P<", "?<")) and not rest.startswith(("?<=", "?<!"))
        if named and ">" in rest:
            self.position += rest.index(">") + 1
            return
        construct = _GROUP_KINDS.get(rest[:2], "an inline flag")
        raise self.make_unsupported(f"{construct} '({rest[:3]}'", "a plain group")

    def parse_escape(self) -> str:
        char = self.advance()
        if char in _CLASSES:
            return f"[{_CLASSES[char]}]"
        if char.lower() in _CLASSES:
            return f"[^{_CLASSES[char.lower()]}]"
        if char in _ANCHOR_ESCAPES:
            raise self.make_unsupported(f"'\\{char}'", "explicit characters")
        if char in "123456789":
            raise self.make_unsupported(f"the back reference '\\{char}'", "the referenced part itself")
        return f'"{self.parse_escaped_char(char)}"'

    def parse_escaped_char(self, char: str) -> str:
        """Return GBNF for one escaped character, valid in a terminal and in a class."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _HEX_DIGITS:
            digits = self.pattern[self.position : self.position + _HEX_DIGITS[char]]
            self.position += len(digits)
            try:
                return _escape_char(chr(int(digits, 16)))
            except (ValueError, OverflowError):
                raise self.make_syntax_error(f"'\\{char}{digits}'") from None
        if char.isalnum():
            raise self.make_unsupported(f"'\\{char}'", "the characters themselves")
        return _escape_char(char)

    def parse_char_class(self) -> str:
        negated = "^" if self.next_is("^") else ""
        self.position += len(negated)
        parts: list[str] = []
        while not self.next_is("]") or not parts:
            parts.append(self.parse_class_part())
        self.position += 1
        return f"[{negated}{''.join(parts)}]"

    def parse_class_part(self) -> str:
        char = self.advance("an unclosed '['")
        if char == "[" and self.next_is(":"):
            raise self.make_unsupported("a POSIX class '[:'", "\\d, \\w, \\s or the characters themselves")
        if char != "\\":
            return _escape_char(char) if char != "-" else self.parse_dash()
        escaped = self.advance()
        if escaped in _CLASSES:
            return _CLASSES[escaped]
        if escaped.lower() in _CLASSES:
            raise self.make_unsupported(f"'\\{escaped}' inside '[...]'", "a separate class")
        if escaped == "b":
            return "\\x08"
        return _escape_char(escaped) if not escaped.isalnum() else self.parse_escaped_char(escaped)

    def parse_dash(self) -> str:
        """Return a range dash, or a literal dash if it is first or last in the class."""
        first = self.pattern[self.position - 2] in "[^" and self.pattern[max(self.position - 3, 0)] != "\\"
        return _escape_char("-") if first or self.next_is("]") else "-"

    def parse_quantifier(self) -> str:
        """Return the quantifier after an atom in GBNF; empty if there is none."""
        if self.position >= len(self.pattern):
            return ""
        char = self.pattern[self.position]
        if char in "*+?":
            self.position += 1
            count = char
        elif char == "{" and (bounds := self.parse_bounds()):
            count = bounds
        else:
            return ""
        if self.next_is("?"):
            self.position += 1
        elif self.next_is("+"):
            raise self.make_unsupported("a possessive repeat", "a plain one")
        elif self.position < len(self.pattern) and self.pattern[self.position] == "*":
            raise self.make_syntax_error("two consecutive repeats")
        return count

    def parse_bounds(self) -> str:
        """Parse `{m}`, `{m,}`, `{,n}` or `{m,n}`; any other brace is a plain character."""
        end = self.pattern.find("}", self.position)
        low, comma, high = self.pattern[self.position + 1 : max(end, 0)].partition(",")
        if end < 0 or not (low or high) or not all(part.isdigit() for part in (low, high) if part):
            return ""
        if low and high and int(low) > int(high):
            raise self.make_syntax_error(f"the repeat {{{low},{high}}}")
        self.position = end + 1
        return f"{{{low or 0}{comma}{high}}}"

    def advance(self, problem: str = "a backslash at the end") -> str:
        if self.position >= len(self.pattern):
            raise self.make_syntax_error(problem)
        self.position += 1
        return self.pattern[self.position - 1]

    def next_is(self, char: str) -> bool:
        return self.pattern[self.position : self.position + 1] == char

    def make_syntax_error(self, what: str) -> InvalidRequest:
        return InvalidRequest(
            f"the regex has {what} at position {self.position}", "correct the regex", param="guided_regex"
        )

    def make_unsupported(self, what: str, instead: str) -> Unsupported:
        return Unsupported(f"llamacpp does not support a regex with {what}", f"use {instead}", param="guided_regex")
