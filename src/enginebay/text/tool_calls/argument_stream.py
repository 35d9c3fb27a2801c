"""Converts the streamed "arguments" value of a call to the JSON text that clients get."""

from __future__ import annotations

from typing import Literal

from enginebay.text.tool_calls.json_scanner import WHITESPACE, JsonStringDecoder, JsonValueScanner

_NULL_LITERALS = ("null", "None")


class ArgumentStream:
    """Reads one value and emits it in fragments.

    An object is emitted as written. An object inside a string is unwrapped. `null` and the empty string become {}.
    Anything else (an array, a number, another string) is not an object and is emitted unchanged.
    """

    def __init__(self) -> None:
        self.is_object: bool | None = None  # None while undecided
        self._scanner = JsonValueScanner()
        self._mode: Literal["new", "raw", "string", "unwrapped", "scalar"] = "new"
        self._seen = ""  # an undecided string or scalar
        self._decoded = ""
        self._decoder = JsonStringDecoder()

    @property
    def done(self) -> bool:
        return self._scanner.done

    @property
    def broken(self) -> bool:
        return self._scanner.broken

    def advance(self, text: str, at: int) -> tuple[int, str]:
        """Continue at `at`. Return the end of the value or text, and the fragment for the client."""
        end = self._scanner.advance(text, at)
        piece = text[at:end]
        if self._mode == "new" and piece:
            self._set_mode(piece[0])
        return end, self._convert(piece, self._scanner.done)

    def _set_mode(self, first: str) -> None:
        if first in "{[":
            self._mode, self.is_object = "raw", first == "{"
        else:
            self._mode = "string" if first == '"' else "scalar"

    def _convert(self, piece: str, last: bool) -> str:
        if self._mode == "raw":
            return piece
        if self._mode == "unwrapped":
            return self._decoder.feed(piece[:-1] if last else piece, last)
        if self._mode == "string":
            return self._convert_string(piece, last)
        self._seen += piece
        return self._resolve(self._seen in _NULL_LITERALS) if last else ""

    def _convert_string(self, piece: str, last: bool) -> str:
        inside = piece if self._seen else piece[1:]
        self._seen += piece
        self._decoded += self._decoder.feed(inside[:-1] if last else inside, last)
        first = self._decoded.lstrip(WHITESPACE)[:1]
        if first == "{":
            self._mode, self.is_object = "unwrapped", True
            return self._decoded
        if first:
            self._mode = "raw"
        return self._resolve(not first) if first or last else ""

    def _resolve(self, empty: bool) -> str:
        self.is_object = empty
        return "{}" if empty else self._seen
