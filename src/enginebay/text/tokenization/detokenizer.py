"""Text out of a stream of tokens: whole characters only, and stop strings found across token borders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"  # what a decoder shows for bytes that are not (yet) a character
_CONTEXT_TOKENS = 6  # prompt tokens kept in front, so that the first token keeps its leading space
_MAX_PENDING_TOKENS = 8  # tokens to wait for the rest of a character: a character has at most 4 bytes


class TokenDecoder(Protocol):
    """The one method needed of a `tokenizers.Tokenizer`."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


class IncrementalDetokenizer:
    """Turns tokens into text one by one; the pieces joined are the text of the whole, without broken characters."""

    def __init__(self, tokenizer: TokenDecoder, prompt: Sequence[int] = (), skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._window = list(prompt[-_CONTEXT_TOKENS:])
        self._emitted_tokens = len(self._window)  # tokens of the window whose text has been given out
        self._emitted_chars = len(self._decode().rstrip(REPLACEMENT))

    def feed(self, token: int) -> str:
        """The text this token completes; empty while a character is incomplete."""
        self._window.append(token)
        text = self._decode()
        pending = len(self._window) - self._emitted_tokens
        if text.endswith(REPLACEMENT) and pending < _MAX_PENDING_TOKENS:
            return ""
        return self._emit(text)

    def finish(self) -> str:
        """What is still held at the end, without the broken character it may end with."""
        return self._emit(self._decode().rstrip(REPLACEMENT))

    def _emit(self, text: str) -> str:
        piece = text[self._emitted_chars :]
        # The tokens just given out stay in front of the next ones: how a token reads can depend on its neighbour.
        self._window = self._window[self._emitted_tokens :]
        self._emitted_tokens = len(self._window)
        self._emitted_chars = len(self._decode())
        return piece

    def _decode(self) -> str:
        if not self._window:
            return ""
        return self._tokenizer.decode(self._window, skip_special_tokens=self._skip_special)


class StopScanner:
    """Finds the first stop string in a stream of text, and holds back what could still become one.

    The result does not depend on how the text is cut: the stop string that is complete first wins.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that is safe to show. After a match nothing more comes."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        self._held = ""
        found = self._find_first(text)
        if found is not None:
            start, self.matched = found
            return text[:start]
        keep = self._count_unsafe(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text held back, when nothing more comes."""
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
        """Length of the longest end of the text that a stop string could begin with."""
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops if len(stop) > size):
                return size
        return 0
