"""Tokenizer for engines whose tokens are bytes."""

from __future__ import annotations

from collections.abc import Iterable

BYTE_TOKENIZER_NAME = "bytes"  # given instead of a path


class ByteTokenizer:
    """One token per byte of UTF-8 text."""

    vocabulary_size = 256
    special_ids: frozenset[int] = frozenset()
    added_ids: frozenset[int] = frozenset()

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        return bytes(ids).decode("utf-8", "replace")
