"""Base of the streaming parsers: emits text until a call may start, and falls back to text if it is none."""

from __future__ import annotations

from collections.abc import Callable

from enginebay.text.output_events import AnswerText, OutputEvent, merge_events
from enginebay.text.tool_calls.json_scanner import WHITESPACE
from enginebay.text.tool_calls.opening_finder import CallOpeningFinder


class StreamingCallParser:
    """A state machine over a buffer. A state is a method that returns False when it needs more text.

    Whitespace (space, tab, line ends) directly before or after a call is dropped, unless it separates text before the
    call from text after it. All other whitespace is text. Text that looked like a call but is none is emitted
    unchanged. Once the name of a call is emitted, its punctuation is never text, even if the answer ends early.
    """

    def __init__(self, finder: CallOpeningFinder) -> None:
        self._finder = finder
        self._buffer = ""
        self._state: Callable[[list[OutputEvent]], bool] = self._read_text
        self._index = 0  # of the next call
        self._opening = ""
        self._opening_length = 0  # length of the whitespace and opening before a possible call
        self._position = 0  # how far the possible call is read
        self._after_call = False  # only whitespace since the last call
        self._gap = ""  # that whitespace
        self._text_emitted = False
        self._line_start = True
        self._pieces: list[str] = []  # not in the buffer yet: whitespace waits for what follows
        self._blank = True  # in text, with only whitespace held back
        self._is_mid_line = False  # within a line of text, with nothing held back

    def feed(self, text: str) -> list[OutputEvent]:
        if self._is_mid_line and self._finder.is_plain_text(text):
            return [AnswerText(text)]
        self._pieces.append(text)
        if self._blank and not text.strip(WHITESPACE):
            self._is_mid_line = False
            return []
        out: list[OutputEvent] = []
        self._advance(out)
        in_text = self._state == self._read_text
        self._blank = in_text and not self._buffer.strip(WHITESPACE)
        in_line = not self._after_call and not (self._finder.bare and self._line_start)
        self._is_mid_line = in_text and not self._buffer and in_line
        return merge_events(out)

    def end(self) -> list[OutputEvent]:
        out: list[OutputEvent] = []
        self._advance(out)
        while self._state != self._read_text:
            self._finish_incomplete(out)
            self._advance(out)
        self._emit_text(self._buffer, out)
        self._buffer = ""
        return merge_events(out)

    def _advance(self, out: list[OutputEvent]) -> None:
        self._buffer += "".join(self._pieces)
        self._pieces.clear()
        while self._state(out):
            pass

    def _read_text(self, out: list[OutputEvent]) -> bool:
        if self._after_call:
            self._skip_gap()
        text = self._buffer
        opening = self._finder.find(text, self._line_start)
        if opening is None:
            certain = self._finder.count_certain_text(text, self._line_start)
            self._buffer = text[certain:]
            self._emit_text(text[:certain], out)
            return False
        at, self._opening = opening
        before = text[:at].rstrip(WHITESPACE)
        self._emit_text(before, out)
        self._buffer = text[len(before) :]
        self._opening_length = self._position = at - len(before) + len(self._opening)
        self._state = self._read_opening
        return True

    def _read_opening(self, out: list[OutputEvent]) -> bool:
        """After an opening: determine the form of the call."""
        raise NotImplementedError

    def _finish_incomplete(self, out: list[OutputEvent]) -> None:
        """Return to the text state at the end of the answer. By default, held text is emitted."""
        self._reject(out)

    def _reject(self, out: list[OutputEvent]) -> bool:
        """Emit the opening as text and read what follows again: this is not a call."""
        self._emit_text(self._buffer[: self._opening_length], out)
        self._buffer = self._buffer[self._opening_length :]
        self._state = self._read_text
        return True

    def _commit_call(self) -> None:
        """Drop what was read from the buffer: the call has started and cannot become text."""
        self._buffer = self._buffer[self._position :]
        self._position = self._opening_length = 0
        self._gap = ""

    def _skip_gap(self) -> None:
        """Remove the whitespace after a call from the buffer."""
        rest = self._buffer.lstrip(WHITESPACE)
        self._gap += self._buffer[: len(self._buffer) - len(rest)]
        self._buffer = rest

    def _skip_closer(self, closer: str) -> None:
        """Remove the closer of a call from the buffer."""
        self._buffer = self._buffer[len(closer) :]
        self._gap = ""

    def _finish_call(self) -> bool:
        """Return to the text state after a call and its closer."""
        self._after_call = self._line_start = True
        self._state = self._read_text
        return True

    def _emit_text(self, text: str, out: list[OutputEvent]) -> None:
        if not text:
            return
        out.append(AnswerText(self._gap + text if self._text_emitted else text))
        self._text_emitted, self._after_call, self._gap = True, False, ""
        _, newline, line = text.rpartition("\n")
        self._line_start = (bool(newline) or self._line_start) and not line.strip(WHITESPACE)
