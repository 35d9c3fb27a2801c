"""Finds where a call may start in a text, and how much text must be held back."""

from __future__ import annotations

import re

from enginebay.text.tool_calls.json_scanner import WHITESPACE

CODE_FENCE = "```"

_LINE_OPENING = re.compile(r"(?:\A|\n)[ \t\r]*([{\[]|```)")
_LINE_OPENING_SO_FAR = re.compile(r"(?:\A|\n)[ \t\r]*(`{1,2})\Z")


class CallOpeningFinder:
    """Finds the opening of a call: a marker anywhere, or with `bare` also {, [ or a fence at the start of a line."""

    def __init__(self, markers: tuple[str, ...], bare: bool) -> None:
        self.bare = bare
        self._markers = re.compile("|".join(map(re.escape, markers)) or r"(?!)")
        self._marker_prefixes = tuple({marker[:size] for marker in markers for size in range(1, len(marker))})
        # Text without any of these cannot open a call.
        firsts = "".join({marker[0] for marker in markers}) + ("\n" if bare else "")
        self._trigger = re.compile(f"[{re.escape(firsts)}]")

    def is_plain_text(self, piece: str) -> bool:
        """Return whether a piece within a line can be emitted at once."""
        return piece[-1:] not in WHITESPACE and not self._trigger.search(piece)

    def find(self, text: str, line_start: bool) -> tuple[int, str] | None:
        """Return the position and text of the first opening."""
        marker = self._markers.search(text)
        opening = (marker.start(), marker.group()) if marker else None
        if self.bare:
            line = _LINE_OPENING.search(text, 0 if line_start else max(text.find("\n"), 0))
            # Within a line, \A does not match the start of a line.
            if line and not line_start and text[line.start()] != "\n":
                line = None
            if line and (opening is None or line.start(1) < opening[0]):
                opening = (line.start(1), line.group(1))
        return opening

    def count_certain_text(self, text: str, line_start: bool) -> int:
        """Return how many characters are certainly text: without trailing whitespace and partial openings."""
        size = len(text)
        if self._marker_prefixes and text.endswith(self._marker_prefixes):
            size = min(size - len(start) for start in self._marker_prefixes if text.endswith(start))
        if self.bare:
            line = _LINE_OPENING_SO_FAR.search(text)
            if line and (line_start or text[line.start()] == "\n"):
                size = min(size, line.start(1))
        return len(text[:size].rstrip(WHITESPACE))
