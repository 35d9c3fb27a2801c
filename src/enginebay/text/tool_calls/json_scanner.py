"""Incremental JSON scanning: finds the end of values, decodes strings, validates text."""

from __future__ import annotations

import json
import re
from typing import NoReturn

WHITESPACE = " \t\r\n"
MAX_NAME_LENGTH = 256  # of a key or name. Bounds the text that is scanned again with each piece

_SPACES = re.compile(r"[ \t\r\n]*")
_STRUCTURE = re.compile(r'[^"{}\[\]<]*')
_QUOTED = re.compile(r'[^"\\]*')
_SCALAR = re.compile(r"[-+.\w]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_STRING_SO_FAR = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z')
_SIMPLE_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def skip_whitespace(text: str, at: int) -> int:
    """Return the position of the first non-whitespace character from `at`."""
    match = _SPACES.match(text, at)
    return match.end() if match else at


def begins_with(text: str, at: int, literal: str) -> bool | None:
    """Return whether `literal` is at `at`; None while the text is too short to tell."""
    if text.startswith(literal, at):
        return True
    return None if literal.startswith(text[at : at + len(literal)]) else False


def is_json(text: str) -> bool:
    """Return whether the text is one strictly valid JSON value."""
    try:
        # float: Python rejects integers of thousands of digits, and the value is not used.
        json.loads(text, parse_int=float, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def parse_short_string(text: str, at: int) -> tuple[int, str | None]:
    """Parse the key or name whose quote is at `at`. Return its end and value.

    The end is `at` while the string is incomplete, and -1 if it cannot become a short, valid JSON string.
    """
    match = _STRING.match(text, at, at + MAX_NAME_LENGTH)
    if match is None:
        possible = len(text) - at < MAX_NAME_LENGTH and _STRING_SO_FAR.match(text, at)
        return (at if possible else -1), None
    value: str = json.loads(match.group())
    if any("\ud800" <= char <= "\udfff" for char in value):  # a lone surrogate cannot be sent
        return -1, None
    return match.end(), value


class JsonValueScanner:
    """Finds the end of one JSON value that arrives in pieces. Tracks only strings and brackets.

    `broken` if no value starts here, or at a `<` outside strings, which only the closing marker of a call has.
    """

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self._scalar = False

    def advance(self, text: str, at: int) -> int:
        """Continue at `at`. Return the first position after the value, or the end of the text."""
        while at < len(text) and not self.done and not self.broken:
            if self._quoted:
                at = self._scan_string(text, at)
            elif self._scalar:
                at = _match_end(_SCALAR, text, at)
                self.done = at < len(text)
            elif self._depth:
                at = self._scan_container(text, at)
            else:
                at = self._scan_first(text, at)
        return at

    def _scan_first(self, text: str, at: int) -> int:
        char = text[at]
        if char in "{[":
            self._depth = 1
        elif char == '"':
            self._quoted = True
        elif char == "-" or char.isalnum():
            self._scalar = True
        else:
            self.broken = True
            return at
        return at + 1

    def _scan_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        at = _match_end(_QUOTED, text, at)
        if at == len(text):
            return at
        if text[at] == "\\":
            self._escaped = True
        else:
            self._quoted = False
            self.done = self._depth == 0
        return at + 1

    def _scan_container(self, text: str, at: int) -> int:
        at = _match_end(_STRUCTURE, text, at)
        if at == len(text):
            return at
        char = text[at]
        if char == "<":
            self.broken = True
            return at
        if char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            self.done = self._depth == 0
        return at + 1


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


class JsonStringDecoder:
    """Decodes the inside of a JSON string piece by piece. An incomplete escape waits for its rest."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, raw: str, last: bool = False) -> str:
        """Return the text decoded so far. `last` emits an incomplete escape unchanged."""
        text = self._rest + raw
        out: list[str] = []
        at = 0
        while at < len(text):
            length, value = _decode_next(text, at, last)
            if not length:
                break
            out.append(value)
            at += length
        self._rest = text[at:]
        if last:
            out.append(self._rest)
        return "".join(out)


def _decode_next(text: str, at: int, last: bool) -> tuple[int, str]:
    """Return the length and value of the next plain run or escape; length 0 if incomplete."""
    if text[at] != "\\":
        stop = text.find("\\", at)
        plain = text[at:] if stop < 0 else text[at:stop]
        return len(plain), plain
    letter = text[at + 1 : at + 2]
    if letter != "u":
        return (2, _SIMPLE_ESCAPES.get(letter, "\\" + letter)) if letter else (0, "")
    escape = text[at : at + 6]
    if len(escape) < 6:
        return 0, ""
    unit = _parse_code_unit(escape)
    if unit is None or 0xDC00 <= unit < 0xE000:
        return 6, escape
    if not 0xD800 <= unit < 0xDC00:
        return 6, chr(unit)
    return _decode_surrogate_pair(text, at, unit, last)


def _decode_surrogate_pair(text: str, at: int, high: int, last: bool) -> tuple[int, str]:
    """Decode a character written as two escapes. A lone surrogate stays an escape, which is still valid JSON."""
    second = text[at + 6 : at + 12]
    if len(second) < 6 and "\\u".startswith(second[:2]) and not last:
        return 0, ""
    low = _parse_code_unit(second)
    if low is None or not 0xDC00 <= low < 0xE000:
        return 6, text[at : at + 6]
    return 12, chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def _parse_code_unit(escape: str) -> int | None:
    return int(escape[2:], 16) if re.fullmatch(r"\\u[0-9a-fA-F]{4}", escape) else None
