"""Character sets as bit masks: small, and fast to join and compare. Pure.

Each ASCII character has its own bit. All others share the bits above, many characters to a bit. Two sets with a common
character always overlap; two disjoint sets may rarely seem to.
"""

from __future__ import annotations

_ASCII = 128
_SHARED_BITS = 4093  # a prime, so that neighbours in a script never share a bit

_BEYOND_ASCII = ((1 << _SHARED_BITS) - 1) << _ASCII
ALL_CHARS = (1 << (_ASCII + _SHARED_BITS)) - 1


def make_char_bit(char: str) -> int:
    code = ord(char)
    return 1 << code if code < _ASCII else 1 << (_ASCII + code % _SHARED_BITS)


def make_range_bits(first: str, last: str) -> int:
    low, high = ord(first), ord(last)
    bits = ((1 << (min(high, _ASCII - 1) + 1)) - 1) >> low << low if low < _ASCII else 0
    if high < _ASCII:
        return bits
    return bits | (make_char_bit(last) if low == high else _BEYOND_ASCII)


def _make_mask(chars: str) -> int:
    bits = 0
    for char in chars:
        bits |= make_char_bit(char)
    return bits


DIGIT_CHARS = make_range_bits("0", "9")
WORD_CHARS = DIGIT_CHARS | make_range_bits("a", "z") | make_range_bits("A", "Z") | _make_mask("_")
SPACE_CHARS = _make_mask(" \t\n\r\v\f")
ANY_BUT_NEWLINE = ALL_CHARS & ~_make_mask("\n")

# Engines disagree on whether \w contains non-ASCII letters, so both \w and \W contain them here.
ESCAPED_CLASSES = {
    "d": DIGIT_CHARS,
    "w": WORD_CHARS | _BEYOND_ASCII,
    "s": SPACE_CHARS,
    "D": ALL_CHARS & ~DIGIT_CHARS,
    "W": ALL_CHARS & ~WORD_CHARS,
    "S": ALL_CHARS & ~SPACE_CHARS,
}
