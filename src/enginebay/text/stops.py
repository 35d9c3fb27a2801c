"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Lets text through up to a stop string; holds back only what may yet turn out to be the start of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """What may be shown now, and the stop string that was found, if one was: the one that ends the text first."""
        text = self._held + text
        found = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if found:
            self._held = ""
            start, stop = min(found, key=lambda one: (one[0] + len(one[1]), one[0]))
            return text[:start], stop
        keep = self._open_end(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def rest(self) -> str:
        """What was held back, once it is clear that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _open_end(self, text: str) -> int:
        """Length of the longest end of the text that begins some stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
