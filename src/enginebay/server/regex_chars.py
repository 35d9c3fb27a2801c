"""Sets of characters as bit masks: small, and quick to join and to compare. Pure.

ASCII has a bit for each character. All others share the bits above, many characters to a bit: two sets that have a
character in common always overlap, and two that have none may seem to, rarely.
"""

from __future__ import annotations

_ASCII = 128
_SHARED = 4093  # a prime, so that neighbours in a script never share a bit

_BEYOND_ASCII = ((1 << _SHARED) - 1) << _ASCII
EVERY = (1 << (_ASCII + _SHARED)) - 1


def char_bit(char: str) -> int:
    code = ord(char)
    return 1 << code if code < _ASCII else 1 << (_ASCII + code % _SHARED)


def range_bits(first: str, last: str) -> int:
    low, high = ord(first), ord(last)
    bits = ((1 << (min(high, _ASCII - 1) + 1)) - 1) >> low << low if low < _ASCII else 0
    if high < _ASCII:
        return bits
    return bits | (char_bit(last) if low == high else _BEYOND_ASCII)


def _of(chars: str) -> int:
    bits = 0
    for char in chars:
        bits |= char_bit(char)
    return bits


DIGITS = range_bits("0", "9")
WORD = DIGITS | range_bits("a", "z") | range_bits("A", "Z") | _of("_")
SPACE = _of(" \t\n\r\v\f")
ANY_BUT_NEWLINE = EVERY & ~_of("\n")

# Some engines count letters of all scripts to \w, others do not: here they are in \w and in \W.
ESCAPED_CLASSES = {
    "d": DIGITS,
    "w": WORD | _BEYOND_ASCII,
    "s": SPACE,
    "D": EVERY & ~DIGITS,
    "W": EVERY & ~WORD,
    "S": EVERY & ~SPACE,
}
