"""Bounds the text that is tokenized: of one that cannot fit, a part is enough to know it. Pure.

Tokenizing takes about 150 times the memory of the text. There is no bound on the characters of one token: normalizers
and unknown words can make one of any length. So we tokenize pieces, until they have twice the tokens that fit; a cut
adds only a few. A text with few characters per token that fits is tokenized whole, without this.
"""

from __future__ import annotations

from collections.abc import Iterator

_PIECE_CHARS = 16_000
_CUT_CHARS = 200  # at the end of a piece, where a space is looked for
_USUAL_CHARS_PER_TOKEN = 8  # real texts have 2 to 5
_SPARE_TOKENS = 64
_MIN_TOKENIZE_TOKENS = 65_536


class TextTooLong(Exception):
    """The text has at least this many tokens, more than fit."""

    def __init__(self, min_tokens: int) -> None:
        super().__init__(min_tokens)
        self.min_tokens = min_tokens


class PromptBound:
    """How many tokens of a text are needed. `keep`: drop the rest, before or after them; otherwise it is too long."""

    def __init__(self, max_tokens: int, keep: str = "") -> None:
        self.max_tokens = max_tokens
        self._keep = keep  # "first", "last" or "": all
        self.cut = False  # a part was dropped before it was tokenized

    def is_short(self, chars: int) -> bool:
        """Return whether a text of this length may be tokenized whole."""
        return chars <= self.max_tokens * _USUAL_CHARS_PER_TOKEN + _PIECE_CHARS

    def split(self, text: str) -> Iterator[str]:
        """Yield the pieces of the text, in the order in which they are needed."""
        return split_text(text, from_end=self._keep == "last")

    def has_enough(self, tokens: int) -> bool:
        """Return whether pieces with this many tokens are enough. Raise `TextTooLong` if nothing may be dropped."""
        if tokens <= 2 * self.max_tokens + _SPARE_TOKENS:
            return False
        if not self._keep:
            raise TextTooLong(tokens // 2)
        return True

    def cut_text(self, text: str, chars: int) -> str:
        """Return the needed part of the text, which has this many characters."""
        self.cut = self.cut or chars < len(text)
        return text[-chars:] if self._keep == "last" else text[:chars]


def make_bound(context_length: int, truncate: int | None, keep: str) -> PromptBound:
    """Return the bound of a prompt. Truncation to more than the context is none: what exceeds that is refused anyway."""
    if truncate is None or truncate > context_length:
        return PromptBound(context_length)
    return PromptBound(max(1, truncate), keep)


def get_tokenize_limit(context_length: int) -> int:
    """Return the most tokens of /tokenize and /detokenize: beyond the context, so that clients learn how much does not fit."""
    return max(2 * context_length, _MIN_TOKENIZE_TOKENS)


def split_text(text: str, *, from_end: bool = False) -> Iterator[str]:
    """Yield pieces of about `_PIECE_CHARS`, cut before a space if there is one."""
    start, end = 0, len(text)
    while end - start > _PIECE_CHARS:
        if from_end:
            cut = _find_cut(text, end - _PIECE_CHARS)
            yield text[cut:end]
            end = cut
        else:
            cut = _find_cut(text, start + _PIECE_CHARS - _CUT_CHARS)
            yield text[start:cut]
            start = cut
    yield text[start:end]


def _find_cut(text: str, at: int) -> int:
    """Return where to cut within `_CUT_CHARS` from there: before a space, or else there."""
    space = text.find(" ", at, at + _CUT_CHARS)
    return at if space < 0 else space
