"""Recover the tokens that llama.cpp does not report: those that end inside a UTF-8 character.

Its server sends nothing until a character is complete, and then only the id of the last token. The count gives the
number of missing tokens and the text gives their bytes, so the vocabulary yields their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from enginebay.text.gguf.gguf_reader import GgufFile

_TOKENS, _TYPES, _MODEL = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.model"
_END_TOKEN = "tokenizer.ggml.eos_token_id"
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


class TokenPieces:
    """The bytes of every token of a vocabulary, and the reverse mapping."""

    def __init__(self, pieces: Sequence[bytes], end_token: int = 0) -> None:
        self._pieces = pieces
        self.end_token = end_token
        self._ids: dict[bytes, int] = {}
        for token_id, piece in enumerate(pieces):
            if piece:
                self._ids.setdefault(piece, token_id)

    @classmethod
    def from_gguf(cls, file: GgufFile) -> TokenPieces:
        texts = file.metadata.get(_TOKENS, ())
        types = file.metadata.get(_TYPES) or [_NORMAL] * len(texts)
        byte_level = file.metadata.get(_MODEL) == "gpt2"
        pieces = [_to_bytes(text, kind, byte_level) for text, kind in zip(texts, types, strict=True)]
        return cls(pieces, int(file.metadata.get(_END_TOKEN, 0)))

    def __len__(self) -> int:
        return len(self._pieces)

    def get_piece(self, token_id: int) -> bytes:
        return self._pieces[token_id] if token_id < len(self._pieces) else b""

    def list_all(self) -> Sequence[bytes]:
        """Return the bytes of each token, by id; empty for control tokens."""
        return self._pieces

    def find_token(self, text: str) -> int | None:
        """Return the token with exactly this text."""
        return self._ids.get(text.encode())

    def find_unreported(self, text: str, last_id: int, missing: int) -> list[int]:
        """Return the ids of the `missing` tokens before `last_id` that with it form `text`; empty if not found."""
        data = text.encode()
        last = self.get_piece(last_id)
        if last and data.endswith(last):
            data = data[: -len(last)]
        return next(_iter_segmentations(data, missing, self._ids), [])


def _iter_segmentations(data: bytes, count: int, ids: Mapping[bytes, int]) -> Iterator[list[int]]:
    """Yield the ways to split `data` into exactly `count` tokens, longest first piece first, as BPE merges."""
    if count == 0:
        if not data:
            yield []
        return
    for size in range(len(data) - count + 1, 0, -1):
        token_id = ids.get(data[:size])
        if token_id is not None:
            for rest in _iter_segmentations(data[size:], count - 1, ids):
                yield [token_id, *rest]


def _to_bytes(text: str, kind: int, byte_level: bool) -> bytes:
    """Return a token's bytes; empty for control tokens, which are never part of a character."""
    if kind in (_CONTROL, _UNKNOWN):
        return b""
    if kind == _BYTE:
        return bytes([int(text[3:5], 16)])  # "<0x0A>"
    if byte_level and kind == _NORMAL:
        letters = _build_byte_alphabet()
        known = all(letter in letters for letter in text)
        return bytes(letters[letter] for letter in text) if known else text.encode()
    return text.replace("\u2581", " ").encode()


@cache
def _build_byte_alphabet() -> dict[str, int]:
    """Return GPT-2's byte alphabet. Unprintable bytes map to letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    letters.update({chr(0x100 + offset): byte for offset, byte in enumerate(others)})
    return letters
