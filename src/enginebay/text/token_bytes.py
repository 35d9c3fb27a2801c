"""The bytes one token stands for: half a character is a fact that a decoded text cannot show."""

from __future__ import annotations

import re
from functools import lru_cache

from enginebay.text.tokenizer import Tokenizer

_BYTE = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")


def token_bytes(tokenizer: Tokenizer, number: int) -> bytes:
    """The bytes of one token; a special token's are those of its name."""
    token = tokenizer.token(number)
    if token is None:
        return b""
    if number in tokenizer.added_ids:
        return token.encode()
    if tokenizer.byte_level:
        table = _byte_level_table()
        return bytes(table[char] for char in token if char in table)
    if found := _BYTE.match(token):
        return bytes((int(found[1], 16),))
    if token.startswith("##"):  # WordPiece: within a word
        return token[2:].encode()
    return token.replace("▁", " ").encode()


@lru_cache(maxsize=1)
def _byte_level_table() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character; the others are moved above 255, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}
