"""Turns a stream of tokens into text: whole characters only, with stop strings matched across tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"  # decoders emit it for bytes that are not (yet) a character
_CONTEXT_TOKENS = 6  # prompt tokens kept as context, so that the first token keeps its leading space
_MAX_PENDING_TOKENS = 8  # to wait for the rest of a character, which has at most 4 bytes


class TokenDecoder(Protocol):
    """The part of `tokenizers.Tokenizer` used here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


class IncrementalDetokenizer:
    """Decodes tokens one by one. The joined pieces are the whole text, without broken characters."""

    def __init__(self, tokenizer: TokenDecoder, prompt: Sequence[int] = (), skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._window = list(prompt[-_CONTEXT_TOKENS:])
        self._emitted_tokens = len(self._window)  # tokens of the window whose text has been emitted
        self._emitted_chars = len(self._decode().rstrip(REPLACEMENT))

    def feed(self, token: int) -> str:
        """Return the text that this token completes; empty while a character is incomplete."""
        self._window.append(token)
        text = self._decode()
        pending = len(self._window) - self._emitted_tokens
        if text.endswith(REPLACEMENT) and pending < _MAX_PENDING_TOKENS:
            return ""
        return self._emit(text)

    def finish(self) -> str:
        """Return the remaining text, without a broken character at its end."""
        return self._emit(self._decode().rstrip(REPLACEMENT))

    def _emit(self, text: str) -> str:
        piece = text[self._emitted_chars :]
        # Keep the emitted tokens as context: how a token decodes can depend on the one before.
        self._window = self._window[self._emitted_tokens :]
        self._emitted_tokens = len(self._window)
        self._emitted_chars = len(self._decode())
        return piece

    def _decode(self) -> str:
        if not self._window:
            return ""
        return self._tokenizer.decode(self._window, skip_special_tokens=self._skip_special)


class StopScanner:
    """Finds the first stop string in a text stream, and holds back text that could still become one.

    The result does not depend on how the text is split: the stop string that completes first wins.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Return the text that is safe to emit; nothing after a match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        self._held = ""
        match = self._find_first(text)
        if match is not None:
            start, self.matched = match
            return text[:start]
        keep = self._count_unsafe(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the text held back, at the end of the stream."""
        held, self._held = self._held, ""
        return held

    def _find_first(self, text: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _count_unsafe(self, text: str) -> int:
        """Return the length of the longest suffix that a stop string starts with."""
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops if len(stop) > size):
                return size
        return 0
