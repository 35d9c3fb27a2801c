"""The tokenizer of engines whose tokens are bytes."""

from __future__ import annotations

from collections.abc import Iterable

BYTE_TOKENIZER_NAME = "bytes"  # in the place of a path


class ByteTokenizer:
    """Every byte of the text is a token."""

    vocabulary_size = 256
    special_ids: frozenset[int] = frozenset()
    added_ids: frozenset[int] = frozenset()

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        return bytes(ids).decode("utf-8", "replace")
