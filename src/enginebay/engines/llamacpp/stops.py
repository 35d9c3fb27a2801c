"""Finds stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds back text that may be the beginning of a stop string, and cuts before the first one that is complete."""

    __slots__ = ("_held", "_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, piece: str, searching: bool = True) -> str:
        """The text that is safe to send now. `matched` is set when a stop string is complete."""
        if not self._stops:
            return piece
        if not searching:
            return piece
        text = self._held + piece
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.matched = min(found, key=lambda hit: (hit[0], -len(hit[1])))
            self._held = ""
            return text[:at]
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """What is still held back when the output ends."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """How many characters at the end could be the beginning of a stop string."""
        longest = min(max(len(stop) for stop in self._stops) - 1, len(text))
        for size in range(longest, 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
